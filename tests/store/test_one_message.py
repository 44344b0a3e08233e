"""What locks rows outside a batch's transaction is one message to Postgres: a frozen process keeps none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import QueryCanceled
from sqlalchemy import Connection, Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import (
    Changes,
    Claim,
    CursorLost,
    Cursors,
    Kind,
    Move,
    Quarantined,
    advance_together,
    connect,
    record_invoice,
    register_pipeline,
)
from taskbridge.store.db import checked_out, in_one_message
from tests.waiting import taking_at_most

TOKEN = f"{1:016d}-aaaaaaaaaaaa"
TENANTS = ["a", "b", "c", "d", "e"]


def key(tenant: str) -> RunKey:
    return RunKey("invoices", tenant, TOKEN)


def moves(engine: Engine, tenants: list[str]) -> list[Move]:
    """Claim the cursors of tenants with a record each; return their advances."""
    cursors, found = Cursors(engine), []
    for tenant in tenants:
        record_invoice(engine, tenant, "1", {"number": "%s '"})
        page = cursors.claim(Claim(key(tenant), 10, events=1, runs=1))
        with cursors.transaction(key(tenant)) as transaction:
            found.append(transaction.move(page))
    return found


def handled(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        asked = "SELECT tenant FROM taskbridge.sync_cursors WHERE records > 0 ORDER BY tenant"
        return list(connection.exec_driver_sql(asked).scalars())


@contextmanager
def traced(engine: Engine, path: Path) -> Iterator[list[str]]:
    """Note the kinds of the messages that the next session of the pool sends meanwhile, in order."""
    sent: list[str] = []
    with checked_out(engine) as driver:
        session, pgconn = driver, driver.pgconn
    with path.open("w") as file:
        pgconn.trace(file.fileno())
        yield sent
        with checked_out(engine) as driver:
            assert driver is session
            pgconn.untrace()
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    sent += [line[3] for line in lines if len(line) > 3 and line[1] == "F"]


def test_a_shared_advance_is_one_message(engine: Engine, tmp_path: Path) -> None:
    advances = moves(engine, TENANTS)
    with traced(engine, tmp_path / "trace") as sent:
        assert advance_together(engine, advances) == [False] * 5
    assert sent == ["Query"]
    assert handled(engine) == TENANTS


def test_to_note_a_success_is_one_message(engine: Engine, tmp_path: Path) -> None:
    register_pipeline(engine, "invoices", "invoices")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.pipelines SET failed = true")
    with traced(engine, tmp_path / "trace") as sent:
        Cursors(engine).note_success(key("a"))
    assert sent == ["Query"]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT failed FROM taskbridge.pipelines").scalar() is False


def test_to_keep_what_a_round_has_seen_is_one_message(engine: Engine, tmp_path: Path) -> None:
    changes = Changes(engine)
    changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    record_invoice(engine, "a", "1", {})
    found = changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    with traced(engine, tmp_path / "trace") as sent:
        changes.store_page(Kind.POLLER, "invoices", found)
    assert sent == ["Query"]
    with engine.connect() as connection:
        asked = "SELECT snapshot::text FROM taskbridge.tails WHERE kind = 'tail'"
        assert connection.exec_driver_sql(asked).scalar() == found.seen


def sleep_at_updates(connection: Connection, table: str, condition: str) -> None:
    """Let each update of a row take half a minute if it meets the condition."""
    connection.exec_driver_sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {condition} THEN PERFORM pg_sleep(30); END IF; RETURN new; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER slow BEFORE UPDATE ON taskbridge.{table} FOR EACH ROW EXECUTE FUNCTION slow()"
    )


def test_an_advance_that_takes_too_long_says_nothing_of_those_before_it(engine: Engine, bounded: Engine) -> None:
    """They are committed: their runs have not failed."""
    advances = moves(engine, TENANTS)
    with engine.begin() as connection:
        sleep_at_updates(connection, "sync_cursors", "new.tenant = 'c'")
    with engine.connect() as other:
        # So each of them has to be advanced alone.
        other.exec_driver_sql("SELECT FROM taskbridge.sync_cursors WHERE tenant = 'b' FOR UPDATE")
        with taking_at_most(10):
            found = advance_together(bounded, advances)
    assert [found[0], found[1], found[3], found[4]] == [False, None, None, None]
    assert isinstance(found[2], QueryCanceled)
    assert handled(engine) == ["a"]


def test_an_advance_changes_quarantine_in_the_same_message_or_not_at_all(engine: Engine, tmp_path: Path) -> None:
    for number in ("1", "2"):
        record_invoice(engine, "a", number, {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, cause, attempts) "
            "VALUES ('invoices', 'a', '1', 0, 'an earlier revision', 'failed', 1)"
        )
    cursors = Cursors(engine)
    page = cursors.claim(Claim(key("a"), 10, events=1, runs=1))
    bad = Quarantined({"2": "bad"}, "rejected")

    def owned_by(token: str) -> list[tuple[str, str]]:
        """Let a run own the cursor; return what is in quarantine before that."""
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE taskbridge.sync_cursors SET owner = %(token)s", {"token": token})
            found = connection.exec_driver_sql("SELECT external_id, reason FROM taskbridge.quarantine")
            return [(row.external_id, row.reason) for row in found]

    owned_by("9" * 29)
    with cursors.transaction(key("a")) as transaction, pytest.raises(CursorLost):
        transaction.advance(transaction.move(page, to_quarantine=bad))
    assert owned_by(TOKEN) == [("1", "an earlier revision")]
    with traced(engine, tmp_path / "trace") as sent, cursors.transaction(key("a")) as transaction:
        transaction.advance(transaction.move(page, to_quarantine=bad))
    assert sent == ["Query"]
    assert owned_by(TOKEN) == [("2", "bad")]


def test_the_encoding_that_a_database_has_for_its_sessions_is_not_ours(engine: Engine) -> None:
    """In this one, the second byte of some letters is a backslash, and others cannot be written at all."""
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET client_encoding = 'SJIS'")
    here = connect(engine.url.render_as_string(hide_password=False))
    try:
        assert advance_together(here, moves(here, ["\u8868", "\u00e9\u0142"])) == [False, False]
    finally:
        here.dispose()
    assert handled(engine) == ["\u00e9\u0142", "\u8868"]


@pytest.mark.parametrize("count", [1, 16])
def test_a_shared_advance_reads_no_other_cursor(engine: Engine, count: int) -> None:
    advances = moves(engine, [f"tenant {at}" for at in range(count)])
    with engine.begin() as connection:
        # Without statistics.
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
            "SELECT 'invoices', 'other ' || n FROM generate_series(1, 20000) n"
        )

    def read() -> int:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
            asked = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'sync_cursors'"
            return int(connection.exec_driver_sql(asked).scalar_one())

    def flushed(driver: psycopg.Connection[Any]) -> None:
        driver.execute("SELECT pg_stat_force_next_flush()")

    before = read()
    with checked_out(engine) as driver:
        flushed(driver)
    advance_together(engine, advances)
    with checked_out(engine) as driver:
        flushed(driver)
    assert count <= read() - before <= 3 * count


def test_a_time_out_that_passes_as_a_statement_ends_reaches_no_later_one(engine: Engine) -> None:
    hit = 0
    for at in range(600):
        with suppress(QueryCanceled), checked_out(engine) as driver:
            rows = 3000 + 700 * (at % 30)
            counted = f"SELECT count(*) FROM generate_series(1, {rows})"  # noqa: S608 - numbers
            assert in_one_message(driver, counted, {}, statement_timeout="2ms") == [(rows,)]
        try:
            with checked_out(engine) as driver:
                driver.execute("SELECT 1")
        except QueryCanceled:
            hit += 1
    # The last statement has the limit too until it ends, so a machine that stands still for 2 ms just then shifts a
    # timeout to the next message. Without that statement, one in fifty is shifted.
    assert hit <= 1
