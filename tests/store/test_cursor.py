"""The cursor delivers every committed record once per revision, whatever order transactions commit in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event

from taskbridge.store import Changes, CursorLost, Cursors, StaleToken, Unread, connect, record_invoice
from taskbridge.store.checkout import end_checkout
from tests.store.adopting import rows, run
from tests.store.sweeping import IN_ONE_DATABASE, NEW, OLD, advance, batch, claim, key, waiting, write
from tests.waiting import wait_until


@pytest.fixture
def cursors(engine: Engine) -> Cursors:
    return Cursors(engine)


PLAIN = """
SELECT r.revision FROM taskbridge.records r, taskbridge.sync_cursors c
WHERE r.source = 'invoices' AND r.tenant = 'acme' AND c.tenant = 'acme'
  AND NOT pg_visible_in_snapshot(r.xid, c.snapshot)
  AND (c.target IS NULL OR pg_visible_in_snapshot(r.xid, c.target))
  AND (c.at_xid IS NULL OR (r.xid, r.id) > (c.at_xid, c.at_id))
ORDER BY r.xid, r.id LIMIT {}
"""
"""What a batch must have, without the two ranges of the index by which it is read."""
SESSIONS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("write", "savepoint")), SESSIONS, st.sampled_from("abcd")),
        st.tuples(st.just("end"), SESSIONS, st.booleans()),
        st.tuples(st.just("batch"), st.integers(1, 4), st.booleans()),
    ),
    min_size=12,
    max_size=40,
)


def write_beside_another(session: Connection, number: str, version: int) -> None:
    """Record something, and the same of a tenant whose records nobody may see."""
    for tenant in ("acme", "another"):
        record_invoice(session.engine, tenant, number, {"version": version}, session)


A_COMMIT_IN_THE_MIDDLE_OF_A_SWEEP: list[tuple[str, int, Any]] = [
    *(("write", at, "a") for at in range(3)),
    *(("end", at, True) for at in (0, 2)),
    ("batch", 1, False),
    ("end", 1, True),
    ("batch", 1, False),
]


@settings(IN_ONE_DATABASE, max_examples=80)
@given(steps=STEPS)
@example(steps=A_COMMIT_IN_THE_MIDDLE_OF_A_SWEEP)
def test_every_committed_revision_is_delivered_exactly_once(engine: Engine, steps: list[tuple[str, int, Any]]) -> None:
    """Four sessions commit and roll back in any order, some in savepoints; batches of any size, crashes between."""
    run(engine, "TRUNCATE taskbridge.records, taskbridge.sync_cursors")
    cursors = Cursors(engine)
    # Each key belongs to one session, so that none waits for another.
    written: list[dict[str, int]] = [{} for _ in range(4)]
    committed: dict[str, int] = {}
    seen: list[tuple[str, int]] = []
    token = 0

    def deliver(limit: int, *, crash: bool) -> bool:
        nonlocal token
        token += 1
        who = f"{token:016d}-x"
        page = claim(cursors, limit, token=who)
        assert [record.revision for record in page.records] == [row[0] for row in rows(engine, PLAIN.format(limit))]
        if not crash and page.moves_cursor:
            advance(cursors, page, token=who)
            seen.extend((record.external_id, record.document["version"]) for record in page.records)
        return page.moves_cursor

    def end(at: int, *, commits: bool) -> None:
        if commits:
            sessions[at].commit()
            committed.update(written[at])
        else:
            sessions[at].rollback()
        written[at] = {}

    with ExitStack() as opened:
        sessions = [opened.enter_context(engine.connect()) for _ in range(4)]
        for version, (step, at, what) in enumerate(steps):
            if step == "end":
                end(at, commits=what)
            elif step == "batch":
                deliver(at, crash=what)
            else:
                with sessions[at].begin_nested() if step == "savepoint" else nullcontext():
                    write_beside_another(sessions[at], f"{what}{at}", version)
                written[at][f"{what}{at}"] = version
        for at in range(4):
            end(at, commits=True)
        while deliver(2, crash=False):
            pass
    assert len(seen) == len(set(seen)), "a revision was delivered twice"
    assert dict(seen) == committed
    assert [tenant for tenant in Changes(engine).pending("invoices", "invoices") if tenant == "acme"] == []


def test_a_run_that_only_ends_a_sweep_did_not_take_records(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1", "2")
    assert batch(cursors, limit=2) == ["1", "2"]
    times = "SELECT last_taken_at, last_run_at FROM taskbridge.sync_cursors"
    ((taken, ran),) = rows(engine, times)
    assert taken == ran
    assert batch(cursors, limit=2, token=NEW) == []
    ((still, ran),) = rows(engine, times)
    assert ran > still == taken


def test_a_run_that_was_replaced_neither_advances_nor_claims_nor_reads_nor_keeps_what_it_wrote(
    engine: Engine, cursors: Cursors
) -> None:
    write(engine, "1")
    page = claim(cursors, token=OLD)
    claim(cursors, token=NEW)
    for writes in (False, True):
        with cursors.transaction(key(token=OLD)) as transaction:
            if writes:
                transaction.connect().exec_driver_sql("CREATE TABLE effect ()")
            with pytest.raises(CursorLost):
                transaction.advance(transaction.move(page))
    assert rows(engine, "SELECT to_regclass('effect')") == [(None,)]
    with pytest.raises(StaleToken) as refused:
        claim(cursors, token=OLD)
    assert refused.value.owner == NEW
    with pytest.raises(CursorLost):
        cursors.read(key(token=OLD), 100)
    assert batch(cursors, token=NEW) == ["1"]


def test_two_runs_with_one_token_do_not_both_advance(engine: Engine, cursors: Cursors) -> None:
    # given a Redis that came back with old data and began the same run twice
    write(engine, "1")
    first, second = claim(cursors), claim(cursors)
    assert advance(cursors, first) == ["1"]
    with pytest.raises(CursorLost):
        advance(cursors, second)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_claim_that_waited_for_another_run_reads_what_that_run_left(
    engine: Engine, cursors: Cursors, isolation: str
) -> None:
    """The read takes its snapshot after the claim; taken before, it would deliver the first run's records again."""
    run(engine, f"ALTER DATABASE \"{engine.url.database}\" SET default_transaction_isolation TO '{isolation}'")
    engine.dispose()
    write(engine, "1")
    page = claim(cursors, token=OLD)
    with engine.connect() as locking, ThreadPoolExecutor(1) as pool:
        # given a first run that has advanced but not yet committed
        locking.exec_driver_sql(
            "UPDATE taskbridge.sync_cursors SET snapshot = %(target)s::pg_snapshot, sweeps = sweeps + 1",
            {"target": page.target},
        )
        successor = pool.submit(claim, cursors, token=NEW)
        wait_until(lambda: waiting(engine), "the successor waits")
        assert not successor.done()
        locking.commit()
        assert successor.result(10).records == ()


def test_a_connection_that_failed_in_the_middle_of_a_read_is_usable_again(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1")
    with pytest.raises(Unread, match="InvalidRowCountInLimitClause"):
        claim(cursors, limit=-1)
    assert batch(cursors) == ["1"]


def test_a_run_that_freezes_between_its_advance_and_the_commit_holds_its_successor_for_its_ttl_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = Cursors(engine, runner_ttl=0.3)
    write(engine, "a")
    page = claim(cursors)
    frozen, wakes = threading.Event(), threading.Event()

    def freeze(*arguments: Any) -> Any:
        frozen.set()
        wakes.wait(30)
        return end_checkout(*arguments)

    monkeypatch.setattr("taskbridge.store.transaction.end_checkout", freeze)
    successor = connect(engine.url.render_as_string(hide_password=False))
    try:
        with ThreadPoolExecutor(2) as pool, cursors.transaction(key()) as transaction:
            transaction.connect()  # the handler writes in it, so the advance is not the transaction's only statement
            advancing = pool.submit(transaction.advance, transaction.move(page))
            assert frozen.wait(10)
            claimed = pool.submit(claim, Cursors(successor), token=NEW).result(20)
            wakes.set()
            with pytest.raises(psycopg.Error):
                advancing.result(10)
    finally:
        wakes.set()
        successor.dispose()
    assert [record.external_id for record in claimed.records] == ["a"], "the advance took no effect"


def test_a_read_that_the_server_cancels_is_not_sent_again(engine: Engine) -> None:
    hurried = connect(engine.url.update_query_dict({"options": "-c statement_timeout=50ms"}).render_as_string(False))
    checkouts: list[object] = []
    event.listen(hurried, "checkout", lambda *_: checkouts.append(None))
    with engine.begin() as blocking:
        blocking.exec_driver_sql("LOCK TABLE taskbridge.sync_cursors")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            claim(Cursors(hurried))
    assert len(checkouts) == 3, (
        "the read, the look for a run that was replaced and holds the lock, and whose cursor it is"
    )
    hurried.dispose()
