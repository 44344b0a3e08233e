"""Records that nobody notified are found at once, whatever happens to workers, Redis and other pipelines' passes."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from sqlalchemy import Connection

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Keys
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify
from taskbridge.store import Changes, Kind, NoAnswer
from taskbridge.worker.poller import Poller
from taskbridge.worker.ticker import fire_due
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

BASE_INTERVAL = 3.0


def insert(deployment: Deployment, tenant: str, *numbers: str) -> None:
    """Plain INSERTs, as any program may make them; nobody notifies."""
    with deployment.engine.begin() as connection:
        for number in numbers:
            insert_in(connection, tenant, number)


def insert_in(connection: Connection, tenant: str, number: str) -> None:
    connection.exec_driver_sql(
        "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', %s, %s, '{}')",
        (tenant, number),
    )


def delivered(deployment: Deployment, tenant: str) -> list[str]:
    return sorted(number for of, number in deployment.deliveries() if of == tenant)


def wait_for(deployment: Deployment, tenant: str, *numbers: str, within: float) -> None:
    wait_until(lambda: delivered(deployment, tenant) == sorted(numbers), f"{tenant} is delivered", within)


def holder(deployment: Deployment) -> str | None:
    found = deployment.redis.get(Keys().tailing("invoices"))
    return None if found is None else str(found).split()[0]


SELDOM = pytest.mark.parametrize("deployment", [{"base_interval": 600.0}], indirect=True)


@pytest.mark.parametrize(
    "deployment", [{"tail_interval": 30.0, "base_interval": 600.0, "tail_listens": True}], indirect=True
)
def test_a_commit_that_is_announced_is_found_at_once(deployment: Deployment) -> None:
    deployment.execute("SELECT taskbridge.announce('invoices')")
    with deployment.worker() as worker:
        wait_until(lambda: len(listeners(deployment)) == 1, "the worker listens", 10)
        before = listeners(deployment)
        time.sleep(1.5)
        insert(deployment, "a", "1", "2")
        wait_for(deployment, "a", "1", "2", within=15)
        assert listeners(deployment) == before, "it listens on, however quiet it is"
        assert "listener:" not in worker.text()
        # and a worker whose listening session was ended makes another
        deployment.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN taskbridge'")
        wait_until(lambda: len(listeners(deployment)) == 1, "the worker listens again", 10)
        insert(deployment, "c", "1")
        wait_for(deployment, "c", "1", within=20)


def listeners(deployment: Deployment) -> list[int]:
    found = deployment.rows(
        "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN taskbridge' AND datname = current_database()"
    )
    return [row.pid for row in found]


@SELDOM
def test_the_poller_of_a_worker_that_dies_or_freezes_is_taken_over(deployment: Deployment) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(deployment.worker())
        wait_until(lambda: holder(deployment) is not None, "the first has the poller")
        second = stack.enter_context(deployment.worker())
        # when the first is killed, the second goes on
        had = holder(deployment)
        first.kill()
        insert(deployment, "killed", "1")
        wait_until(lambda: holder(deployment) not in (None, had), "the second has the poller", 10)
        wait_for(deployment, "killed", "1", within=20)
        # and when that one is frozen, a third does
        stack.enter_context(deployment.worker())
        had = holder(deployment)
        second.signal_all(signal.SIGSTOP)
        stack.callback(second.signal_all, signal.SIGCONT)
        insert(deployment, "frozen", "1")
        wait_until(lambda: holder(deployment) not in (None, had), "the third has the poller", 10)
        # A message that the frozen one had fetched comes again after its time.
        wait_for(deployment, "frozen", "1", within=20)
        second.signal_all(signal.SIGCONT)
        insert(deployment, "awake", "1")
        wait_for(deployment, "awake", "1", within=15)


def test_redis_comes_back_with_older_data(deployment: Deployment) -> None:
    """It says that a run is queued, whose message is gone."""
    raw = redis.Redis.from_url(deployment.settings.redis_url)
    deployment.save("acme", "1")
    older: dict[Any, Any] = {key: raw.dump(key) for key in list(raw.scan_iter("sync:*"))}
    with deployment.worker():
        wait_for(deployment, "acme", "1", within=20)
        deployment.wait_until_idle()
        deployment.redis.flushdb()
        for key, value in older.items():
            raw.restore(key, 0, value)
        insert(deployment, "acme", "2")
        insert(deployment, "b", "1")
        wait_for(deployment, "b", "1", within=20)
        wait_for(deployment, "acme", "1", "2", within=20)
    raw.close()


def test_a_round_that_fails_ends_no_other_pipelines_round(deployment: Deployment) -> None:
    """One pipeline's poller stands in the way of nobody: here somebody's transaction locks where it is kept."""
    runtime = runtime_of(deployment.app)
    declared = Pipelines()
    runtime.pipelines = declared
    for name in ("first", "invoices", "last"):
        declared.declare(Pipeline(name, print, LatencyNeutral(), 100, source="invoices"))
    poller = Poller(runtime)
    poller.poll_pages()
    insert(deployment, "acme", "1")
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM taskbridge.tails WHERE pipeline = 'invoices' FOR UPDATE")
        poller.poll_pages()
    assert [runtime.gate.active(name) for name in declared.names()] == [["acme"]] * 3
    assert poller.states["invoices"].rests_until > 0
    assert poller.states["last"].rests_until == poller.states["first"].rests_until == 0
    wait_until(lambda: time.monotonic() > poller.states["invoices"].rests_until, "it is tried again", 5)
    poller.poll_pages()
    assert poller.states["invoices"].extra == 0


def poller_of(deployment: Deployment, page: int) -> Poller:
    """A poller that has made its first passes."""
    runtime = runtime_of(deployment.app)
    runtime.changes = Changes(deployment.engine, page=page)
    poller = Poller(runtime)
    for kind in Kind:
        to_the_end(poller, kind)
    return poller


def page(poller: Poller, kind: Kind) -> bool:
    """Make a page; whether another one follows."""
    state = poller.states["invoices"]
    if kind is Kind.POLLER:
        poller.poll_pages()
        return state.polling is not None
    state.reconciles_at, state.holds_until = 0.0, time.monotonic() + 60
    poller.reconcile_pages()
    return state.reconciling is not None


def to_the_end(poller: Poller, kind: Kind) -> None:
    wait_until(lambda: not page(poller, kind), "the last page")


def stands(deployment: Deployment) -> dict[str, Any]:
    found = deployment.rows("SELECT kind, snapshot::text AS snapshot, stored_at FROM taskbridge.tails")
    return {one.kind: one for one in found}


def forget(deployment: Deployment, *tenants: str) -> None:
    """Let Redis forget the runners of tenants."""
    deployment.redis.delete(Keys().due("invoices"), *(Keys().runner("invoices", tenant) for tenant in tenants))


@pytest.mark.parametrize("deployment", [{"base_interval": 0.1}], indirect=True)
def test_a_page_that_took_too_long_gets_more_time_and_the_round_goes_on_from_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = poller_of(deployment, page=2)
    for tenant in "abcdef":
        insert(deployment, tenant, "1")
    to_the_end(poller, Kind.POLLER)
    forget(deployment, *"abcdef")
    assert page(poller, Kind.RECONCILER)
    asked = []

    def silent(_: Changes, __: Kind, pipeline: str, *___: Any, more_seconds: float, **____: Any) -> None:
        # On a slow machine the other pipeline is due as well.
        if pipeline == "invoices":
            asked.append(more_seconds)
        raise NoAnswer("silent")

    with monkeypatch.context() as patch:
        patch.setattr(Changes, "read_page", silent)
        for _ in range(3):
            page(poller, Kind.RECONCILER)
    assert asked == [0.0, 1.0, 2.0]
    assert len(deployment.gate.active("invoices")) == 2
    assert page(poller, Kind.RECONCILER)
    assert len(deployment.gate.active("invoices")) == 4
    assert poller.states["invoices"].reconcile_extra == 0.0
    to_the_end(poller, Kind.RECONCILER)
    assert sorted(deployment.gate.active("invoices")) == [*"abcdef"]


def test_who_takes_the_poller_over_makes_a_base_round_within_the_base_interval(deployment: Deployment) -> None:
    other = make_app(deployment.settings).app
    first, second = Poller(runtime_of(deployment.app)), Poller(runtime_of(other))
    second.poll_pages()
    assert second.states["invoices"].reconciles_at == 0.0
    first.poll_pages()
    state = first.states["invoices"]
    if state.holds_until > 0:
        pytest.skip("the machine stood still for so long that the second has lost it already")
    state.reconciles_at = time.monotonic() + 1_000
    wait_until(lambda: first.poll_pages() > 0 and state.holds_until > 0, "the first takes it over", 5)
    assert 0 < state.reconciles_at - time.monotonic() <= BASE_INTERVAL
    assert state.lost == 0
    runtime_of(other).close()
    other.close()


def test_a_redis_that_forgets_the_reminders_of_a_base_round_is_noticed(deployment: Deployment) -> None:
    poller = poller_of(deployment, page=100)
    insert(deployment, "acme", "1")
    to_the_end(poller, Kind.POLLER)
    forget(deployment, "acme")
    state = poller.states["invoices"]
    older, lost = str(deployment.redis.get(Keys().tailing("invoices"))), state.lost
    page(poller, Kind.RECONCILER)
    assert deployment.gate.active("invoices") == ["acme"]
    # It has lost what came after the reconciler's pass had begun.
    deployment.redis.flushdb()
    deployment.redis.set(Keys().tailing("invoices"), older)
    poller.poll_pages()
    assert state.lost == lost + 1
    poller.reconcile_pages()
    assert deployment.gate.active("invoices") == ["acme"]


@pytest.mark.parametrize("kind", [*Kind])
@pytest.mark.parametrize("together", [False, True], ids=["transactions of one record", "one transaction"])
def test_a_round_begins_anew_where_what_its_page_stored_is_lost(
    deployment: Deployment, kind: Kind, together: bool
) -> None:
    """Postgres crashed, and they were written with `synchronous_commit = off`; or a replica that lags took over."""
    poller = poller_of(deployment, page=2)
    with deployment.engine.connect() as connection:
        for tenant in "abcde":
            insert_in(connection, tenant, "1")
            if not together:
                connection.commit()
        connection.commit()
    if kind is Kind.RECONCILER:
        to_the_end(poller, Kind.POLLER)
        forget(deployment, *"abcde")
    before = stands(deployment)[kind]
    assert page(poller, kind)
    assert sorted(deployment.gate.active("invoices")) == ["a", "b"]
    # The server is what it was before the page, and the id of a record that this saw is another's.
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE taskbridge.tails SET snapshot = %s::pg_snapshot, stored_at = %s WHERE kind = %s",
            (before.snapshot, before.stored_at, kind.value),
        )
        connection.exec_driver_sql("SET LOCAL taskbridge.keep_ids = 'on'")
        connection.exec_driver_sql("UPDATE taskbridge.records SET tenant = 'victim' WHERE tenant = 'a'")

    to_the_end(poller, kind)
    assert sorted(deployment.gate.active("invoices")) == [*"abcde", "victim"]


def test_an_error_in_one_pipelines_tick_leaves_the_others_alone(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    pipelines = Pipelines()
    for name in ("alpha", "invoices", "zebra"):
        pipelines.declare(Pipeline(name, print, LatencyNeutral(), 500))
    runtime.pipelines = pipelines
    # given deadlines that passed long ago, and in one pipeline something that is none
    for name in ("alpha", "zebra"):
        notify(deployment.app, "acme", name)
        deployment.redis.zadd(runtime.keys.due(name), {"acme": 1})
    deployment.redis.set(runtime.keys.due("invoices"), "no sorted set")
    fire_due(runtime)
    for name in ("alpha", "zebra"):
        (runner,) = runtime.gate.look(name, ["acme"])
        assert runner.deadline_ms is not None
        assert runner.deadline_ms > 1, "its message was published again"
