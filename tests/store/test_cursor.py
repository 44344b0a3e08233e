"""The cursor delivers every committed record once per revision, whatever order transactions commit in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event

from taskbridge.common.run_key import RunKey
from taskbridge.store import (
    Changes,
    Claim,
    CursorLost,
    Cursors,
    Page,
    StaleToken,
    Unread,
    connect,
    record_invoice,
)
from taskbridge.store.checkout import end_checkout

OLD, NEW, NEWEST = (f"{at:016d}-aaaaaaaaaaaa" for at in (1, 2, 3))


def key(tenant: str = "acme", token: str = OLD) -> RunKey:
    return RunKey("invoices", tenant, token)


@pytest.fixture
def cursors(engine: Engine) -> Cursors:
    return Cursors(engine)


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """A second session, whose transaction the test ends itself."""
    with engine.connect() as connection:
        yield connection


def claim(cursors: Cursors, limit: int = 100, **who: str) -> Page:
    return cursors.claim(Claim(key(**who), limit, events=1, runs=1))


def advance(cursors: Cursors, page: Page, **who: str) -> list[str]:
    """Deliver `page` to nobody, advance past it, and return what it held."""
    with cursors.transaction(key(**who)) as transaction:
        transaction.advance(transaction.move(page))
    return [record.external_id for record in page.records]


def sweep(cursors: Cursors, limit: int = 100, **who: str) -> list[str]:
    """Claim, then read and advance until nothing is left; return the invoice numbers in order."""
    page = claim(cursors, limit, **who)
    numbers: list[str] = []
    while True:
        if page.moves_cursor:
            numbers += advance(cursors, page, **who)
        if page.finished:
            return numbers
        page = cursors.read(key(**who), limit)


def write(engine: Engine, *numbers: str, tenant: str = "acme", version: int = 1) -> None:
    for number in numbers:
        record_invoice(engine, tenant, number, {"version": version})


def test_a_transaction_that_commits_late_is_not_skipped(engine: Engine, cursors: Cursors, other: Connection) -> None:
    # given an invoice written first and committed last
    record_invoice(engine, "acme", "late", {}, other)
    write(engine, "early")
    # when a sweep passes in between
    assert sweep(cursors) == ["early"]
    other.commit()
    # then the next one finds it, and nothing twice
    assert sweep(cursors) == ["late"]
    assert sweep(cursors) == []


def test_a_late_commit_during_a_paged_sweep_is_not_skipped(engine: Engine, cursors: Cursors, other: Connection) -> None:
    record_invoice(engine, "acme", "late", {}, other)
    write(engine, *"abcd")
    assert advance(cursors, claim(cursors, limit=2)) == ["a", "b"]
    other.commit()
    assert sweep(cursors, limit=2) == ["c", "d"]
    assert sweep(cursors) == ["late"]


def test_a_long_transaction_holds_back_its_own_rows_only(engine: Engine, cursors: Cursors, other: Connection) -> None:
    record_invoice(engine, "acme", "slow import", {}, other)
    for number in ("1", "2", "3"):
        write(engine, number)
        assert sweep(cursors) == [number]
    other.commit()
    assert sweep(cursors) == ["slow import"]


def test_many_records_of_one_transaction_are_paged(engine: Engine, cursors: Cursors, other: Connection) -> None:
    numbers = [f"{number:03}" for number in range(25)]
    for number in numbers:
        record_invoice(engine, "acme", number, {}, other)
    other.commit()
    assert sweep(cursors, limit=10) == numbers


def test_connections_that_broke_in_the_pool_fail_no_run(engine: Engine, cursors: Cursors) -> None:
    # given several connections in the pool, all of which the server ended meanwhile
    write(engine, "1")
    with ExitStack() as opened:
        several = [opened.enter_context(engine.connect()) for _ in range(4)]
        ended = [connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for connection in several]
    with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as admin:
        for pid in ended:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    # then none of the next runs meets one of them
    assert [len(claim(cursors).records) for _ in ended] == [1] * len(ended)


def test_an_invoice_that_changes_while_its_batch_is_handled_comes_again(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1")
    page = claim(cursors)
    write(engine, "1", version=2)
    assert advance(cursors, page) == ["1"]
    assert sweep(cursors) == ["1"]


def test_a_batch_of_exactly_the_limit_ends_the_sweep_one_read_later(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1", "2")
    assert sweep(cursors, limit=2) == ["1", "2"]
    assert sweep(cursors, limit=2) == []
    assert [*Changes(engine).pending("invoices", "invoices")] == []


def test_a_run_that_only_ends_a_sweep_did_not_take_records(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1", "2")
    advance(cursors, claim(cursors, limit=2))
    taken = "SELECT last_taken_at, last_run_at FROM taskbridge.sync_cursors"
    with engine.connect() as connection:
        before = connection.exec_driver_sql(taken).one()
    assert before.last_taken_at == before.last_run_at
    assert sweep(cursors, limit=2, token=NEW) == []
    with engine.connect() as connection:
        after = connection.exec_driver_sql(taken).one()
    assert after.last_run_at > after.last_taken_at == before.last_taken_at


def test_a_crash_between_batches_resumes_after_the_last_one(engine: Engine, cursors: Cursors) -> None:
    # given a sweep of three batches whose run dies after the first
    write(engine, *"abcdef")
    assert advance(cursors, claim(cursors, limit=2)) == ["a", "b"]
    # when other invoices come meanwhile, also a changed one, and a new run takes over
    write(engine, "g")
    write(engine, "a", "c", version=2)
    # then nothing is lost or delivered twice, and what changed or came meanwhile follows
    assert sweep(cursors, limit=2, token=NEW) == ["d", "e", "f"]
    assert sorted(sweep(cursors, limit=2, token=NEW)) == ["a", "c", "g"]


def test_a_run_that_was_replaced_cannot_advance(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1")
    page = claim(cursors, token=OLD)
    claim(cursors, token=NEW)
    with pytest.raises(CursorLost), cursors.transaction(key(token=OLD)) as transaction:
        transaction.advance(transaction.move(page))
    assert sweep(cursors, token=NEW) == ["1"]


def test_a_run_that_was_replaced_cannot_claim_the_cursor_back(cursors: Cursors) -> None:
    claim(cursors, token=NEW)
    with pytest.raises(StaleToken) as refused:
        claim(cursors, token=OLD)
    assert refused.value.owner == NEW
    with pytest.raises(CursorLost):
        cursors.read(key(token=OLD), 100)


def test_two_runs_with_one_token_do_not_both_advance(engine: Engine, cursors: Cursors) -> None:
    # given a Redis that came back with old data and began the same run twice
    write(engine, "1")
    first = claim(cursors)
    second = claim(cursors)
    assert advance(cursors, first) == ["1"]
    with pytest.raises(CursorLost), cursors.transaction(key()) as transaction:
        transaction.advance(transaction.move(second))


def test_what_a_handler_wrote_is_rolled_back_when_the_cursor_is_lost(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1")
    page = claim(cursors, token=OLD)
    claim(cursors, token=NEW)
    with cursors.transaction(key(token=OLD)) as transaction:
        transaction.connect().exec_driver_sql("CREATE TABLE effect ()")
        with pytest.raises(CursorLost):
            transaction.advance(transaction.move(page))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT to_regclass('effect')").scalar() is None


def test_a_claim_that_waited_for_another_run_reads_what_that_run_left(engine: Engine, cursors: Cursors) -> None:
    """The read takes its snapshot after the claim; taken before, it would deliver the first run's records again."""
    write(engine, "1")
    page = claim(cursors, token=OLD)
    claimed = threading.Event()
    delivered: list[str] = []

    def replace() -> None:
        page = claim(cursors, token=NEW)
        claimed.set()
        delivered.extend(record.external_id for record in page.records)

    with engine.connect() as locking:
        # given a first run that has advanced but not yet committed
        locking.exec_driver_sql(
            "UPDATE taskbridge.sync_cursors SET snapshot = %(target)s::pg_snapshot, sweeps = sweeps + 1",
            {"target": page.target},
        )
        successor = threading.Thread(target=replace)
        successor.start()
        wait_for_lock(engine)
        assert not claimed.is_set()
        locking.commit()
    successor.join(timeout=10)
    assert claimed.is_set()
    assert delivered == []


def test_a_database_whose_default_is_repeatable_read_changes_nothing(engine: Engine, cursors: Cursors) -> None:
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation TO 'repeatable read'")
    engine.dispose()
    test_a_claim_that_waited_for_another_run_reads_what_that_run_left(engine, cursors)


def test_a_connection_that_failed_in_the_middle_of_a_read_is_usable_again(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1")
    with pytest.raises(Unread, match="InvalidRowCountInLimitClause"):
        claim(cursors, limit=-1)
    assert sweep(cursors) == ["1"]


def wait_for_lock(engine: Engine) -> None:
    """Return once some session waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(1000):
            if connection.exec_driver_sql(waiting).scalar_one():
                return
            connection.exec_driver_sql("SELECT pg_sleep(0.01)")
    pytest.fail("no session waited for a lock within 10 s")


def test_a_tenant_never_sees_another_tenants_records(engine: Engine, cursors: Cursors) -> None:
    write(engine, "1", "2", tenant="acme")
    write(engine, "1", "3", tenant="acme2")
    assert sweep(cursors, tenant="acme") == ["1", "2"]
    assert sweep(cursors, tenant="acme2") == ["1", "3"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("abcde"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("batch"), st.integers(1, 3), st.booleans()),
    ),
    min_size=12,
    max_size=30,
)


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


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(steps=steps)
def test_every_committed_revision_is_delivered_exactly_once(
    engine: Engine, steps: list[tuple[str, int | str, int | bool]]
) -> None:
    """Writers in three sessions, each number in one of them so that none waits; batches, crashes between batches."""
    cursors = Cursors(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE taskbridge.records, taskbridge.sync_cursors")
    sessions = [engine.connect() for _ in range(3)]
    written: list[dict[str, int]] = [{}, {}, {}]
    committed: dict[str, int] = {}
    seen: list[tuple[str, int]] = []
    version, token = 0, 0

    def deliver(limit: int, crash: bool) -> bool:
        nonlocal token
        token += 1
        who = key(token=f"{token:016d}-x")
        page = cursors.claim(Claim(who, limit, events=0, runs=1))
        if not crash and page.moves_cursor:
            with cursors.transaction(who) as transaction:
                transaction.advance(transaction.move(page))
            seen.extend((record.external_id, record.document["version"]) for record in page.records)
        return bool(page.records) or page.resumed

    try:
        for step, first, second in steps:
            if step == "write":
                at = ord(str(first)) % 3
                version += 1
                record_invoice(engine, "acme", str(first), {"version": version}, sessions[at])
                written[at][str(first)] = version
            elif step == "end":
                at = int(first)
                if second:
                    sessions[at].commit()
                    committed |= written[at]
                else:
                    sessions[at].rollback()
                written[at] = {}
            else:
                deliver(int(first), crash=bool(second))
        for at, session in enumerate(sessions):
            session.commit()
            committed |= written[at]
        while deliver(2, crash=False):
            pass
    finally:
        for session in sessions:
            session.close()
    assert len(seen) == len(set(seen)), "a revision was delivered twice"
    last_seen = dict(seen)
    assert last_seen == committed


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
