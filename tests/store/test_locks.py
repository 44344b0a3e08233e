"""Maintenance beside users' transactions: none of theirs is the victim of a deadlock, or waits long for ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store import (
    Adopted,
    Prune,
    Quarantine,
    adopt,
    adoption,
    backfill,
    begin_again,
    prune,
    rebase,
    register_pipeline,
)
from tests.quarantined import put_in_quarantine
from tests.store.adopting import ORDERS, Reader, adopted, rows, run
from tests.waiting import TIME_FACTOR, wait_until

LONGEST = 4.0 * TIME_FACTOR
"""Seconds that a user's statement may take here: it waits 0.05 s for ours, and a machine of the CI may be very slow."""
UPDATE = "UPDATE orders SET note = note || '.' WHERE id = %s"


@pytest.fixture(autouse=True)
def early_deadlocks(engine: Engine) -> None:
    """Let Postgres look for deadlocks ten times as early as it does by default."""
    run(engine, f"ALTER DATABASE \"{engine.url.database}\" SET deadlock_timeout = '100ms'")
    engine.dispose()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


class User:
    """A session of a program that knows nothing of TaskBridge; how long its slowest statement took, in seconds."""

    def __init__(self, engine: Engine) -> None:
        self.connection = psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(False))
        self.slowest = 0.0

    def does(self, statement: str, *values: Any) -> None:
        began = time.monotonic()
        try:
            self.connection.execute(statement, values)
        finally:
            self.slowest = max(self.slowest, time.monotonic() - began)


@pytest.fixture
def user(engine: Engine) -> Iterator[User]:
    made = User(engine)
    yield made
    made.connection.close()
    assert made.slowest < LONGEST


def orders(engine: Engine, number: int, tenant: str = "acme") -> Adopted:
    """An adopted table with so many rows of before; the later ones of their ids are the tenant's last ones too."""
    run(engine, ORDERS, f"INSERT INTO orders SELECT 100 + n, '{tenant}', n, '' FROM generate_series(1, {number}) n")  # noqa: S608
    return adopted(engine)


def writes_against(user: User, done: Future[Any], ids: list[int]) -> int:
    """Write rows in the opposite order, in one transaction after the other, until `done`; how many there were."""
    count = 0
    while not done.done() or not count:
        for one in reversed(ids):
            user.does(UPDATE, one)
            time.sleep(0.02)
        user.connection.commit()
        count += 1
    return count


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_a_backfill_lets_users_write_in_any_order(
    engine: Engine, user: User, pool: ThreadPoolExecutor, again: bool
) -> None:
    found = orders(engine, 800)
    if again:
        list(backfill(engine, found))
        begin_again(engine, "orders")
    before = rows(engine, "SELECT coalesce(max(revision), 0) FROM taskbridge.records")[0][0]
    user.does(UPDATE, 890)
    pages = pool.submit(lambda: list(backfill(engine, found)))
    time.sleep(0.1)
    writes_against(user, pages, [101, 110, 120, 130, 140, 150, 450, 700])
    assert pages.result(30)[-1].rows == 800
    recorded = f"SELECT count(*), count(*) FILTER (WHERE revision > {before}) FROM taskbridge.records"  # noqa: S608
    assert rows(engine, recorded) == [(800, 800)]
    assert len(Reader(engine).keys("acme")) == 800


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_a_backfill_goes_on_while_a_transaction_stays_open(
    engine: Engine, user: User, pool: ThreadPoolExecutor, ends: str, again: bool
) -> None:
    found = orders(engine, 600)
    if again:
        list(backfill(engine, found))
        begin_again(engine, "orders")
    (before,) = rows(engine, "SELECT coalesce(max(revision), 0) FROM taskbridge.records")[0]
    for one in (120, 121, 400):
        user.does(UPDATE, one)
    user.does("DELETE FROM orders WHERE id = 500")
    pages = pool.submit(lambda: list(backfill(engine, found, 200)))
    written = f"SELECT count(*) FROM taskbridge.records WHERE revision > {before}"  # noqa: S608 - a number
    wait_until(lambda: rows(engine, written) == [(596,)], "all others are written")
    time.sleep(0.3)
    assert not pages.done()
    # Whoever begins again meanwhile, as after this process was killed, leaves none out either.
    other = pool.submit(lambda: list(backfill(engine, found, 200)))
    time.sleep(0.3)
    getattr(user.connection, ends)()
    assert pages.result(30)[-1].is_done
    assert other.result(30)[-1].is_done
    gone = ends == "commit"
    assert rows(engine, written) == [(600,)]
    assert rows(engine, "SELECT count(*) FROM taskbridge.records WHERE deleted") == [(int(gone),)]


def test_records_whose_row_is_gone_are_looked_for_beside_users_who_write_them(
    engine: Engine, user: User, pool: ThreadPoolExecutor
) -> None:
    found = orders(engine, 300)
    list(backfill(engine, found))
    run(engine, "ALTER TABLE orders DISABLE TRIGGER USER", "DELETE FROM orders WHERE id > 150")
    adopt(engine, adoption(engine, "orders", "customer", ["id"]))
    user.does("INSERT INTO orders VALUES (390, 'acme', 1, '')")
    pages = pool.submit(lambda: list(backfill(engine, found, 100)))
    time.sleep(0.2)
    user.does("INSERT INTO orders VALUES (160, 'acme', 1, '')")
    assert not pages.done()
    user.connection.commit()
    pages.result(30)
    assert rows(engine, "SELECT count(*) FILTER (WHERE deleted), count(*) FROM taskbridge.records") == [(248, 300)]


def quarantined(engine: Engine) -> Quarantine:
    """Two records of an adopted table in quarantine."""
    orders(engine, 0)
    register_pipeline(engine, "orders", "orders")
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, ''), (2, 'acme', 1, '')")
    put_in_quarantine(engine, "acme", "1", "2", pipeline="orders")
    return Quarantine(engine, "orders")


def test_a_prune_keeps_nobody_waiting_for_what_it_waits_for(
    engine: Engine, user: User, pool: ThreadPoolExecutor
) -> None:
    quarantined(engine)
    assert len(Reader(engine).keys("acme")) == 2
    put_in_quarantine(engine, "acme", "1", "2", pipeline="orders")
    run(engine, "UPDATE taskbridge.quarantine SET revision = 0")
    with engine.begin() as handler:
        # As a run does whose transaction stays open.
        handler.exec_driver_sql("UPDATE taskbridge.quarantine SET attempts = 1 WHERE external_id = '2'")
        steps = pool.submit(lambda: list(prune(engine, Prune(timedelta(0), {"orders": "orders"}))))
        time.sleep(0.3)
        updated = pool.submit(user.does, UPDATE, 1)
        wait([updated], LONGEST)
        assert updated.done()
        user.connection.commit()
        steps.result(30)
    list(prune(engine, Prune(timedelta(0), {"orders": "orders"})))
    assert rows(engine, "SELECT count(*) FROM taskbridge.quarantine") == [(0,)]
    assert Reader(engine).keys("acme") == ["1"]


def test_a_rebase_keeps_nobody_waiting_while_it_waits(engine: Engine, user: User, pool: ThreadPoolExecutor) -> None:
    orders(engine, 1)
    run(engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    other = User(engine)
    other.does("LOCK taskbridge.quarantine IN ROW EXCLUSIVE MODE")
    rebased = pool.submit(rebase, engine, 3.0)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        with pytest.raises(psycopg.Error, match="restored into another cluster"):
            user.does(UPDATE, 101)
        user.connection.rollback()
        time.sleep(0.02)
    with pytest.raises(Unavailable, match="another transaction is writing"):
        rebased.result(20)
    rebased = pool.submit(rebase, engine, 10.0)
    time.sleep(0.2)
    other.connection.close()
    assert rebased.result(20)
    user.does(UPDATE, 101)
