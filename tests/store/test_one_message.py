"""What locks rows outside a batch's transaction is one message to Postgres: a frozen process keeps none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from psycopg.errors import QueryCanceled
from sqlalchemy import Engine

from taskbridge.store import (
    Changes,
    CursorLost,
    Cursors,
    Kind,
    Move,
    Quarantined,
    advance_together,
    record_invoice,
    register_pipeline,
)
from taskbridge.store.db import checked_out, in_one_message
from tests.store.adopting import rows, run
from tests.store.sweeping import OLD, claim, key, write
from tests.tracing import Trace
from tests.waiting import taking_at_most

TENANTS = ["a", "b", "c", "d", "e"]


def moves(engine: Engine, tenants: list[str]) -> list[Move]:
    """Claim the cursors of tenants with a record each; return their advances."""
    cursors, found = Cursors(engine), []
    for tenant in tenants:
        record_invoice(engine, tenant, "1", {"number": "%s '"})
        page = claim(cursors, tenant=tenant)
        with cursors.transaction(key(tenant)) as transaction:
            found.append(transaction.move(page))
    return found


def handled(engine: Engine) -> list[str]:
    advanced = "SELECT tenant FROM taskbridge.sync_cursors WHERE records > 0 ORDER BY tenant"
    return [tenant for (tenant,) in rows(engine, advanced)]


@contextmanager
def traced(engine: Engine, path: Path) -> Iterator[list[str]]:
    """Note the names of the messages that the next session of the pool sends meanwhile, in order."""
    sent: list[str] = []
    with checked_out(engine) as session:
        trace = Trace(session.pgconn, path)
    yield sent
    sent += [message.name for message in trace.end() if message.is_ours]
    with checked_out(engine) as driver:
        assert driver is session


def test_a_shared_advance_and_a_success_and_what_a_round_has_seen_are_one_message_each(
    engine: Engine, tmp_path: Path
) -> None:
    register_pipeline(engine, "invoices", "invoices")
    run(engine, "UPDATE taskbridge.pipelines SET failed = true")
    changes = Changes(engine)
    changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    advances = moves(engine, TENANTS)
    found = changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    calls: list[Callable[[], object]] = [
        lambda: advance_together(engine, advances),
        lambda: Cursors(engine).note_success(key("a")),
        lambda: changes.store_page(Kind.POLLER, "invoices", found),
    ]
    for call in calls:
        with traced(engine, tmp_path / "trace") as sent:
            call()
        assert sent == ["Query"]
    assert handled(engine) == TENANTS
    assert rows(engine, "SELECT failed FROM taskbridge.pipelines") == [(False,)]
    assert rows(engine, "SELECT snapshot::text FROM taskbridge.tails WHERE kind = 'tail'") == [(found.seen,)]


def test_an_advance_that_takes_too_long_says_nothing_of_those_before_it(engine: Engine, bounded: Engine) -> None:
    """They are committed: their runs have not failed."""
    advances = moves(engine, TENANTS)
    run(
        engine,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.tenant = 'c' THEN PERFORM pg_sleep(30); END IF; RETURN new; END $$",
        "CREATE TRIGGER slow BEFORE UPDATE ON taskbridge.sync_cursors FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    with engine.connect() as other:
        # So each of them has to be advanced alone.
        other.exec_driver_sql("SELECT FROM taskbridge.sync_cursors WHERE tenant = 'b' FOR UPDATE")
        with taking_at_most(10):
            found = advance_together(bounded, advances)
    assert [found[0], found[1], found[3], found[4]] == [False, None, None, None]
    assert isinstance(found[2], QueryCanceled)
    assert handled(engine) == ["a"]


def test_an_advance_changes_quarantine_in_the_same_message_or_not_at_all(engine: Engine, tmp_path: Path) -> None:
    write(engine, "1", "2", tenant="a")
    run(
        engine,
        "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, cause, attempts) "
        "VALUES ('invoices', 'a', '1', 0, 'an earlier revision', 'failed', 1)",
    )
    cursors = Cursors(engine)
    page = claim(cursors, tenant="a")
    bad = Quarantined({"2": "bad"}, "rejected")

    def owned_by(token: str) -> list[tuple[str, str]]:
        """Let a run own the cursor; return what is in quarantine before that."""
        run(engine, f"UPDATE taskbridge.sync_cursors SET owner = '{token}'")  # noqa: S608 - ours
        return rows(engine, "SELECT external_id, reason FROM taskbridge.quarantine")

    owned_by("9" * 29)
    with cursors.transaction(key("a")) as transaction, pytest.raises(CursorLost):
        transaction.advance(transaction.move(page, to_quarantine=bad))
    assert owned_by(OLD) == [("1", "an earlier revision")]
    with traced(engine, tmp_path / "trace") as sent, cursors.transaction(key("a")) as transaction:
        transaction.advance(transaction.move(page, to_quarantine=bad))
    assert sent == ["Query"]
    assert owned_by(OLD) == [("2", "bad")]


@pytest.mark.parametrize("count", [1, 16])
def test_a_shared_advance_reads_no_other_cursor(engine: Engine, count: int) -> None:
    advances = moves(engine, [f"tenant {at}" for at in range(count)])
    others = "SELECT 'invoices', 'other ' || n FROM generate_series(1, 20000) n"
    run(engine, f"INSERT INTO taskbridge.sync_cursors (pipeline, tenant) {others}")  # without statistics

    def read() -> int:
        # The session of the pool that did it says what it did.
        run(engine, "SELECT pg_stat_force_next_flush()")
        statistics = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'sync_cursors'"
        return int(rows(engine, statistics)[0][0])

    before = read()
    advance_together(engine, advances)
    assert count <= read() - before <= 3 * count


def test_a_time_out_that_passes_as_a_statement_ends_reaches_no_later_one(engine: Engine) -> None:
    hit = 0
    for at in range(600):
        with suppress(QueryCanceled), checked_out(engine) as driver:
            number = 3000 + 700 * (at % 30)
            counted = f"SELECT count(*) FROM generate_series(1, {number})"  # noqa: S608 - numbers
            assert in_one_message(driver, counted, {}, statement_timeout="2ms") == [(number,)]
        try:
            with checked_out(engine) as driver:
                driver.execute("SELECT 1")
        except QueryCanceled:
            hit += 1
    # The last statement has the limit too until it ends, so a machine that stands still for 2 ms just then shifts a
    # timeout to the next message. Without that statement, one in fifty is shifted: twelve of these.
    assert hit <= 3
