"""Records that nobody notified are found at once, whatever happens to workers, Redis and other pipelines' passes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from sqlalchemy import Connection, Engine

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Keys
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.store import Changes, ChangesPage, Kind, NoAnswer
from taskbridge.worker.poller import Poller
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


@SELDOM
def test_a_plain_insert_is_delivered_without_any_notify(deployment: Deployment) -> None:
    with deployment.worker():
        insert(deployment, "acme", "1", "2")
        wait_for(deployment, "acme", "1", "2", within=15)
        deployment.wait_until_idle()
    assert deployment.delivered("acme") == [["1", "2"]]


@pytest.mark.parametrize(
    "deployment", [{"tail_interval": 30.0, "base_interval": 600.0, "tail_listens": True}], indirect=True
)
def test_a_commit_that_is_announced_is_found_at_once(deployment: Deployment) -> None:
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("SELECT taskbridge.announce('invoices')")
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
def test_an_event_that_came_before_its_commit_loses_nothing(deployment: Deployment) -> None:
    with deployment.worker(), deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', 'acme', '1', '{}')"
        )
        deployment.notify_event.delay("acme")
        wait_until(lambda: deployment.idle() and runs(deployment, "acme") == 1, "the run found nothing")
        connection.commit()
        wait_for(deployment, "acme", "1", within=15)


def runs(deployment: Deployment, tenant: str) -> int:
    found = deployment.rows("SELECT tenant, runs FROM taskbridge.sync_cursors")
    return next((int(row.runs) for row in found if row.tenant == tenant), 0)


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


def test_the_holder_of_the_poller_alone_makes_rounds(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    first, second = Poller(runtime), Poller(runtime)
    first.poll_pages()
    other = runtime.make_gate(type(runtime.gate))
    assert 0 < other.hold_polling("invoices", 700).wait_ms <= 700
    assert second.states["invoices"].holds_until == 0.0
    runtime.redis.delete(Keys().tailing("invoices"))
    hold = other.hold_polling("invoices", 700)
    assert (hold.wait_ms, hold.lost) == (0, True)
    older = str(deployment.redis.get(Keys().tailing("invoices")))
    hold = other.hold_polling("invoices", 700, hold)
    assert (hold.wait_ms, hold.lost) == (0, False)
    runtime.redis.set(Keys().tailing("invoices"), older)
    third = runtime.make_gate(type(runtime.gate))
    assert third.hold_polling("invoices", 700, hold).lost, "Redis came back with older data, whoever holds by them"
    assert other.hold_polling("invoices", 700, hold).lost, "Redis came back with older data"
    runtime.redis.delete(Keys().tailing("invoices"))
    short = other.hold_polling("invoices", 1)
    time.sleep(0.02)
    assert not other.hold_polling("invoices", 700, short).lost, "it ended, and nobody took it"


def test_what_is_too_much_for_a_page_is_found_by_the_next_ones(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    runtime.changes = Changes(deployment.engine, page=2)
    poller = Poller(runtime)
    poller.poll_pages()
    tenants = [f"t{number}" for number in range(7)]
    for tenant in tenants:
        insert(deployment, tenant, "1")
    assert poller.poll_pages() < 0.1, "there is more"
    assert 2 <= len(runtime.gate.active("invoices")) < 7
    wait_until(lambda: poller.poll_pages() > 0.1, "the last page", 5)
    assert sorted(runtime.gate.active("invoices")) == tenants
    for tenant in tenants:
        deployment.redis.delete(Keys().runner("invoices", tenant))
    deployment.redis.delete(Keys().due("invoices"))
    wait_until(lambda: poller.reconcile_pages() > 0.1, "the last page", 5)
    assert sorted(runtime.gate.active("invoices")) == tenants


class Slow(Changes):
    """Looks that take so many seconds longer, or fail."""

    seconds = 0.0
    error: Exception | None = None
    kinds: tuple[Kind, ...] = (*Kind,)
    looked: Counter[Kind]
    seconds_asked: list[float]
    """For the pipeline invoices: the passes of others may be due at any time."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        super().__init__(engine, **options)
        self.looked, self.seconds_asked = Counter(), []

    def read_page(self, kind: Kind, pipeline: str, *arguments: Any, **options: Any) -> ChangesPage:
        self.looked[kind] += 1
        if kind in self.kinds:
            if pipeline == "invoices":
                self.seconds_asked.append(options["more_seconds"])
            time.sleep(self.seconds)
            if self.error is not None:
                raise self.error
        return super().read_page(kind, pipeline, *arguments, **options)


Make = Callable[..., tuple[Poller, Slow]]


@pytest.fixture
def slow_poller(deployment: Deployment) -> Iterator[Make]:
    """Makes the passes of one process more."""
    apps = []

    def make(**options: Any) -> tuple[Poller, Slow]:
        apps.append(make_app(deployment.settings).app)
        runtime = runtime_of(apps[-1])
        changes = runtime.changes = Slow(deployment.engine, **options)
        return Poller(runtime), changes

    yield make
    for app in apps:
        runtime_of(app).close()
        app.close()


@pytest.mark.parametrize("deployment", [{"base_interval": 0.1}], indirect=True)
def test_few_slow_base_rounds_stretch_nothing_and_more_are_followed_by_a_rest(slow_poller: Make) -> None:
    poller, changes = slow_poller()
    poller.poll_pages()
    state = poller.states["invoices"]

    def rest_after_a_round() -> float:
        state.reconciles_at, state.holds_until = 0.0, time.monotonic() + 60
        poller.reconcile_pages()
        return state.reconciles_at - time.monotonic()

    rest_after_a_round()
    changes.seconds = 0.3
    assert [rest_after_a_round() < 10 for _ in range(4)] == [True, True, True, False]
    changes.seconds = 0.0
    assert rest_after_a_round() < 10
    changes.error = NoAnswer("silent")
    assert rest_after_a_round() < 2


@pytest.mark.parametrize("deployment", [{"base_interval": 0.1}], indirect=True)
def test_a_page_that_took_too_long_gets_more_time_and_the_round_goes_on_from_it(
    deployment: Deployment, slow_poller: Make
) -> None:
    poller, changes = slow_poller(page=2)
    poller.poll_pages()
    with deployment.engine.begin() as connection:
        for tenant in "abcdef":
            insert_in(connection, tenant, "1")
    wait_until(lambda: poller.poll_pages() > 0.1, "the poller has seen all of it", 5)
    deployment.redis.delete(Keys().due("invoices"), *(Keys().runner("invoices", tenant) for tenant in "abcdef"))
    poller.reconcile_pages()
    state = poller.states["invoices"]
    assert len(deployment.gate.active("invoices")) == 2
    changes.error, changes.kinds = NoAnswer("silent"), (Kind.RECONCILER,)
    changes.seconds_asked.clear()
    for _ in range(3):
        state.reconciles_at, state.holds_until = 0.0, time.monotonic() + 60
        poller.reconcile_pages()
    assert changes.seconds_asked == [0.0, 1.0, 2.0]
    changes.error, state.reconciles_at = None, 0.0
    poller.reconcile_pages()
    assert len(deployment.gate.active("invoices")) == 4
    assert state.reconcile_extra == 0.0
    wait_until(lambda: poller.reconcile_pages() > 0.05, "the last page", 5)
    assert sorted(deployment.gate.active("invoices")) == [*"abcdef"]


def test_records_to_be_tried_again_are_found_where_no_page_of_the_base_can_be_read(
    deployment: Deployment, slow_poller: Make
) -> None:
    poller, changes = slow_poller()
    insert(deployment, "acme", "1")
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, retry_at) "
            "SELECT 'invoices', tenant, key, revision, 'bad', now() FROM taskbridge.records"
        )
    changes.error, changes.kinds = NoAnswer("silent"), (Kind.RECONCILER,)
    poller.poll_pages()
    deployment.redis.delete(Keys().due("invoices"), Keys().runner("invoices", "acme"))
    poller.poll_pages()
    poller.reconcile_pages()
    assert deployment.gate.active("invoices") == ["acme"]


def test_who_takes_the_poller_over_makes_a_base_round_within_the_base_interval(slow_poller: Make) -> None:
    first, second = (slow_poller()[0] for _ in range(2))
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


def test_a_redis_that_forgets_the_reminders_of_a_base_round_is_noticed(
    deployment: Deployment, slow_poller: Make
) -> None:
    poller, _ = slow_poller()
    poller.poll_pages()
    poller.reconcile_pages()
    insert(deployment, "acme", "1")
    wait_until(lambda: poller.poll_pages() > 0.1, "the poller has seen it", 5)
    deployment.redis.delete(Keys().due("invoices"), Keys().runner("invoices", "acme"))
    state = poller.states["invoices"]
    older, lost = str(deployment.redis.get(Keys().tailing("invoices"))), state.lost
    state.reconciles_at, state.holds_until = 0.0, time.monotonic() + 60
    poller.reconcile_pages()
    assert deployment.gate.active("invoices") == ["acme"]
    # It has lost what came after the reconciler's pass had begun.
    deployment.redis.flushdb()
    deployment.redis.set(Keys().tailing("invoices"), older)
    poller.poll_pages()
    assert state.lost == lost + 1
    poller.reconcile_pages()
    assert deployment.gate.active("invoices") == ["acme"]
