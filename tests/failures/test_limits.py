"""What makes a tenant wait although nothing failed: the downstream's word, rate limits, a cap on runs, a pause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.declaring.pipeline import Pipeline, pipeline
from taskbridge.declaring.policy import LatencyNeutral, RateLimit
from taskbridge.errors import InvalidPolicy
from taskbridge.handlers.journal import journal
from taskbridge.store import register_pipeline
from taskbridge.worker.poller import reconcile
from tests.failures.drill import Drill
from tests.store.adopting import ORDERS, adopted, run

NUMBERS = [f"{number:04}" for number in range(1, 301)]


# RetryAfter


def test_a_handler_is_called_again_when_its_downstream_said_so(drill: Drill) -> None:
    def busy_once(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise RetryAfter(30)
        journal(batch)

    drill.handle(busy_once)
    drill.save("acme", "a")
    drill.run_one()
    drill.save("acme", "b")
    assert not drill.run_one(), "events are absorbed"
    drill.save("other", "a")
    drill.go_on()
    assert drill.calls == [("acme", ["a"]), ("other", ["a"]), ("acme", ["a", "b"])]
    assert 30_000 <= drill.times[2] - drill.times[0] <= 30_100
    assert drill.errors == []
    assert drill.circuit().opened == 0
    assert drill.deployment.rows("SELECT failures FROM taskbridge.sync_cursors WHERE tenant = 'acme'") == [(0,)]


def test_a_batch_that_comes_again_for_another_reader_counts_as_no_failure(drill: Drill) -> None:
    engine = drill.deployment.engine

    def write_back(batch: Batch) -> None:
        batch.connection.exec_driver_sql("UPDATE orders SET note = note || 'x'")
        if len(drill.calls) == 1:
            register_pipeline(engine, "audit", "invoices")

    drill.handle(write_back)
    run(engine, ORDERS)
    adopted(engine, source="invoices", watched=["total"])
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, '')")
    drill.deployment.notify_event.delay("acme")
    drill.go_on()
    assert drill.calls == [("acme", ["1"])] * 2
    assert drill.errors == []
    assert drill.times[1] <= 1_000
    assert drill.deployment.rows("SELECT failures, last_error FROM taskbridge.sync_cursors") == [(0, None)]
    assert drill.deployment.rows("SELECT note FROM orders") == [("x",)]


def test_a_whole_pipeline_waits_and_its_tenants_then_start_in_turn(drill: Drill) -> None:
    def all_wait(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise RetryAfter(30, scope="pipeline")
        assert drill.now_ms >= 30_000, "a call during the wait"
        journal(batch)

    drill.handle(all_wait)
    tenants = [f"tenant {at}" for at in range(20)]
    for tenant in tenants:
        drill.save(tenant, "a")
    drill.go_on(within_ms=10_000)
    drill.save("late", "a")
    drill.save("tenant 5", "b")
    drill.go_on(within_ms=10_000)
    assert [tenant for tenant, _ in drill.calls] == tenants[:1], "first events wait as well, and others are absorbed"
    drill.go_on()
    assert drill.states() == {"handled": 22}
    assert len(drill.calls) == 22
    assert drill.times[-1] <= 30_100, "nobody waits longer than all of them"
    assert (drill.errors, drill.circuit().opened) == ([], 0)
    assert drill.deployment.rows("SELECT sum(failures), sum(failed_runs) FROM taskbridge.sync_cursors") == [(0, 0)]


def test_what_a_downstream_may_say_about_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[Any, float] = {
        0.5: 0.5,
        " 1.5 ": 1.5,
        -1: 0,
        10**400: 86_400,
        "1e400": 86_400,
        "Fri, 31 Dec 1999 23:59:59 GMT": 0,
        "Fri, 31 Dec 2199 23:59:59 GMT": 86_400,
        None: 30,
        "soon": 30,
        "nan": 30,
        "Fri, 99 Dec 1999 23:59:59 GMT": 30,
    }
    assert {value: RetryAfter(value).seconds for value in given} == given
    # A date is in UTC, whatever the zone of the process.
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        header = formatdate(time.time() + 600, usegmt=True)
        assert 595 <= RetryAfter(header).seconds <= 600
        assert 595 <= RetryAfter(header.replace("GMT", "-0000")).seconds <= 600
    finally:
        monkeypatch.undo()
        time.tzset()


REFUSED: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
    "takes seconds or the text of a Retry-After header": (RetryAfter, [math.nan, True, b"30", [30]]),
    "scope of RetryAfter is 'tenant' or 'pipeline'": (lambda scope: RetryAfter(1, scope=scope), ["all", None]),
    "rate limit": (RateLimit, ["600", "0/m", "-1/s", "600/w", "1.5/s", "2000000/s", "", "600 / m", None, "10calls/s"]),
    "burst": (lambda burst: RateLimit("600/m", burst), [0, 1.5, True, "10"]),
    "pipeline orders: rate_limit (contains|has two)": (
        lambda given: pipeline("orders", rate_limit=given)(journal),
        [5, ("600/m", "60/s"), ("1 calls/s", "2 calls/s"), ("600/m", None), {"600/m"}],
    ),
}


def test_a_limit_that_says_nothing_clear_is_refused() -> None:
    for told, (make, values) in REFUSED.items():
        for value in values:
            with pytest.raises((InvalidPolicy, ValueError), match=told):
                make(value)


def test_retry_after_in_the_trial_of_another_record_is_a_wait_and_no_outage(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "a":
            raise ValueError("bad")
        if len(batch) == 1 and len(told) < 2:
            told.append(1)
            raise RetryAfter(100)
        journal(batch)

    told: list[int] = []
    drill.deliver(handler, "a", "b", max_attempts=2)
    assert drill.circuit().opened == 0
    assert drill.states() == {"quarantined": 1, "handled": 1}
    assert any(later - earlier >= 99_000 for earlier, later in pairwise(drill.times))


class WaitWithoutSeconds(RetryAfter):
    def __init__(self) -> None:
        """Leave out what the base class sets."""


def test_a_group_of_requests_that_are_all_told_to_wait_waits_for_the_longest(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise ExceptionGroup("of a TaskGroup", [RetryAfter(10), ExceptionGroup("inner", [WaitWithoutSeconds()])])
        journal(batch)

    drill.deliver(handler, "a")
    assert drill.errors == []
    assert 30_000 <= drill.times[1] - drill.times[0] <= 30_100, "30 s is what is meant if nothing is said"


def test_a_handler_that_asks_to_wait_for_no_time_is_called_once_a_tick(drill: Drill) -> None:
    def handler(_: Batch) -> None:
        raise RetryAfter(0)

    drill.handle(handler)
    drill.save("acme", "one")
    drill.go_on(lambda: drill.now_ms >= 2_000, steps=200)
    assert 2 <= len(drill.calls) <= 11


# Rate limits


def test_a_pipelines_rate_is_kept_and_every_record_comes(drill: Drill) -> None:
    drill.handle(journal, rate_limit=RateLimit("600/m", burst=20))
    for tenant in ("a", "b", "c"):
        drill.save(tenant, *NUMBERS[:50])
    drill.go_on()
    assert drill.states() == {"handled": 150}
    # 20 at once, then ten a second.
    assert drill.times[-1] == pytest.approx(13_000, rel=0.03)
    assert len(drill.deployment.deliveries()) == 150


def test_probes_of_an_open_circuit_keep_the_rate(drill: Drill) -> None:
    times: list[int] = []

    def away(batch: Batch) -> None:
        times.append(drill.now_ms)
        if len(times) <= 12:
            raise ConnectionError("refused")
        journal(batch)

    drill.handle(away, rate_limit="1 calls/m")
    for tenant in ("a", "b", "c"):
        drill.save(tenant, "1")
    drill.go_on()
    assert drill.circuit().opened == 1
    assert drill.states() == {"handled": 3}
    # Milliseconds are rounded down, and each command before a call moves the clock by a microsecond.
    assert min(later - earlier for earlier, later in pairwise(times)) >= 59_999, times


def test_trials_of_other_records_count_for_the_rate_and_are_not_refused(drill: Drill) -> None:
    calls: list[tuple[int, str]] = []

    def handler(batch: Batch) -> None:
        calls.append((drill.now_ms // 60_000, "".join(record.external_id for record in batch)))
        if any(record.external_id == "a" for record in batch):
            raise ValueError("bad")
        journal(batch)

    drill.deliver(handler, *"ab", max_attempts=1, rate_limit="1 calls/m")
    assert drill.states() == {"quarantined": 1, "handled": 1}
    # The trial of b goes on at once, so the call after it comes a minute later.
    assert calls == [(0, "ab"), (1, "ab"), (2, "a"), (2, "b"), (4, "b")]


# The cap on runs


def test_no_more_runs_are_on_than_the_pipeline_may_have_and_all_get_their_turn(drill: Drill) -> None:
    on: list[int] = []

    def nested(batch: Batch) -> None:
        # Another worker takes the next message while this handler works.
        on.append(1)
        assert len(on) <= 2
        drill.run_one()
        on.pop()
        journal(batch)

    drill.handle(nested, max_runs=2)
    tenants = [f"tenant {number}" for number in range(10)]
    for tenant in tenants:
        drill.save(tenant, "a", "b")
    drill.go_on()
    assert drill.states() == {"handled": 20}
    assert len(drill.calls) == 10
    assert drill.errors == []
    assert drill.times[-1] < 1_000, "a free run slot is taken at once"


def test_an_option_out_of_range() -> None:
    wrong: dict[str, list[Any]] = {
        "max_runs": [1.5],
        "downstream_errors": [("ConnectionError",), (KeyboardInterrupt,)],
    }
    for option, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidPolicy, match=f"pipeline invoices: {option}"):
                Pipeline("invoices", journal, LatencyNeutral(), 500, **{option: value})


# Pause


def hold(drill: Drill, tenant: str) -> None:
    drill.deployment.execute("INSERT INTO taskbridge.pauses (pipeline, tenant) VALUES ('invoices', %s)", (tenant,))


@pytest.mark.parametrize("held", ["acme", ""])
def test_a_paused_tenant_loses_no_event_and_goes_on_at_once(drill: Drill, held: str) -> None:
    drill.handle(journal)
    hold(drill, held)
    drill.save("acme", "a")
    drill.save("other", "a")
    drill.go_on(within_ms=30_000)
    drill.save("acme", "b")
    assert not drill.run_one(), "the event is absorbed"
    assert drill.states("acme") == {"pending": 2}
    assert drill.states("other") == ({"handled": 1} if held else {"pending": 1})
    drill.deployment.execute("DELETE FROM taskbridge.pauses")
    assert [answer.name for answer in drill.gate.expire("invoices", ["acme"], early=True)] == ["PUBLISHED"]
    drill.run_one()
    assert drill.states("acme") == {"handled": 2}


def test_a_pause_lets_the_batch_in_hand_end_and_starts_no_other(drill: Drill) -> None:
    def pause_meanwhile(batch: Batch) -> None:
        if len(drill.calls) == 1:
            hold(drill, "acme")
        journal(batch)

    drill.handle(pause_meanwhile, batch_size=2)
    drill.save("acme", *"abcde")
    drill.go_on(within_ms=50_000)
    assert drill.states() == {"handled": 2, "pending": 3}
    drill.deployment.execute("DELETE FROM taskbridge.pauses")
    reconcile(drill.runtime, "invoices")
    drill.go_on()
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in "abcde"]
