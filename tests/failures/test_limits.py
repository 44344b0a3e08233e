"""What makes a tenant wait although nothing failed: the downstream's word, rate limits, a cap on runs, a pause."""

from __future__ import annotations

import math
import time
from collections import Counter
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.declaring.pipeline import Pipeline, pipeline
from taskbridge.declaring.policy import LatencyNeutral, RateLimit
from taskbridge.errors import InvalidPolicy
from taskbridge.gate import State
from taskbridge.handlers.journal import journal
from taskbridge.store import register_pipeline
from taskbridge.worker.poller import reconcile
from tests.failures.drill import Drill
from tests.store.adopting import ORDERS, adopted, run

NUMBERS = [f"{number:04}" for number in range(1, 1001)]


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


def test_a_handler_that_asks_to_wait_in_the_middle_of_each_batch_gets_through(drill: Drill) -> None:
    calls: Counter[int] = Counter()

    def one_call_for_each_record(batch: Batch) -> None:
        for _ in batch:
            window = drill.now_ms // 2_000
            calls[window] += 1
            if calls[window] > 8:
                raise RetryAfter(2)
        journal(batch)

    drill.handle(one_call_for_each_record, batch_size=20)
    drill.save("acme", *(f"{number:02}" for number in range(30)))
    drill.go_on(steps=100)
    assert drill.states() == {"handled": 30}
    assert len(drill.calls) <= 20


def test_a_handler_with_one_call_for_each_batch_keeps_its_batches_where_it_is_asked_to_wait_now_and_then(
    drill: Drill,
) -> None:
    def every_other_call_has_to_wait(batch: Batch) -> None:
        if len(drill.calls) % 2 == 1:
            raise RetryAfter(2)
        journal(batch)

    drill.handle(every_other_call_has_to_wait, batch_size=10)
    drill.save("acme", *(f"{number:02}" for number in range(30)))
    drill.go_on(steps=100)
    assert [len(numbers) for _, numbers in drill.calls] == [10] * 6


class AllWait:
    """A handler that first asks the whole pipeline to wait for 30 s; then it notes how many calls are on `together`."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._asked_ms: int | None = None
        self._on = 0
        self.together: list[int] = []

    def __call__(self, batch: Batch) -> None:
        drill = self._drill
        if self._asked_ms is None:
            self._asked_ms = drill.now_ms
            raise RetryAfter(30, scope="pipeline")
        assert drill.now_ms >= self._asked_ms + 30_000, "a call during the wait"
        self._on += 1
        self.together.append(self._on)
        # Other workers start what is due, and take the messages that there are, while this handler works.
        drill.gate.expire("invoices", drill.gate.overdue("invoices", 1000))
        while drill.run_one():
            pass
        self._on -= 1
        journal(batch)


def test_a_whole_pipeline_waits_and_its_tenants_then_start_in_turn(drill: Drill) -> None:
    limited = AllWait(drill)
    drill.handle(limited)
    tenants = [f"tenant {at}" for at in range(20)]
    for tenant in tenants:
        drill.save(tenant, "a")
    drill.go_on(within_ms=10_000)
    assert [tenant for tenant, _ in drill.calls] == tenants[:1]
    drill.save("late", "a")
    drill.save("tenant 5", "b")
    drill.go_on(within_ms=10_000)
    assert len(drill.calls) == 1, "first events wait as well, and others are absorbed"
    drill.go_on()
    assert limited.together[:3] == [1, 1, 2], "first one, then two at a time"
    assert max(limited.together) >= 4
    assert drill.states() == {"handled": 22}
    assert len(drill.calls) == 22
    assert drill.times[-1] <= 30_100, "nobody waits longer than all of them"
    assert drill.errors == []
    assert drill.circuit().opened == 0
    assert drill.deployment.rows("SELECT sum(failures), sum(failed_runs) FROM taskbridge.sync_cursors") == [(0, 0)]
    assert drill.runtime.redis.hgetall("sync:circuit:invoices").keys() <= {"closed_at"}


def test_a_whole_pipeline_with_a_cap_that_waited_calls_no_more_of_its_line_than_may_begin(drill: Drill) -> None:
    limited = AllWait(drill)
    drill.handle(limited, max_runs=2)
    tenants = [f"tenant {at:02}" for at in range(50)]
    for tenant in tenants:
        drill.save(tenant, "a")
        drill.gate.us += 1_000
    drill.go_on(within_ms=10_000)
    assert drill.gate.circuit("invoices").waiting == 50
    postponed = len(drill.times)
    drill.go_on()
    assert max(limited.together) == 2, "as many as the cap allows"
    others = [tenant for tenant, _ in drill.calls if tenant != tenants[0]]
    assert others == tenants[1:], "in the order of the wait queue"
    assert len(drill.times) - postponed <= 55, "about one message for each run"
    assert drill.states() == {"handled": 50}
    assert drill.runtime.redis.hgetall("sync:circuit:invoices") == {}
    assert drill.errors == []


def test_a_pipeline_that_is_asked_to_wait_again_begins_with_one_run_again(drill: Drill) -> None:
    free, refused = [0.0], []

    def limited(batch: Batch) -> None:
        # Ten requests a second: a bucket of ten.
        now = drill.now_ms / 1000
        free[0] = max(free[0], now - 1)
        if free[0] + 0.1 > now:
            refused.append(now)
            raise RetryAfter(1, scope="pipeline")
        free[0] += 0.1
        journal(batch)

    drill.handle(limited)
    for at in range(100):
        drill.save(f"tenant {at}", "a")
    drill.go_on(steps=20_000)
    assert drill.states() == {"handled": 100}
    assert len(refused) <= 20, refused
    assert drill.times[-1] <= 20_000


@pytest.mark.parametrize("scope", ["all", "", None, "Pipeline", 1])
def test_a_scope_that_there_is_not(scope: str) -> None:
    with pytest.raises(ValueError, match="scope of RetryAfter is 'tenant' or 'pipeline'"):
        RetryAfter(1, scope=scope)  # type: ignore[arg-type]


def test_what_retry_after_says() -> None:
    assert str(RetryAfter(30)) == "wait 30 s"
    assert str(RetryAfter(1.5, scope="pipeline")) == "wait 1.5 s with the whole pipeline"
    assert repr(RetryAfter(30, scope="pipeline")) == "RetryAfter(30, 'pipeline')"


@pytest.mark.parametrize("seconds", [math.nan, True, b"30", [30]])
def test_what_retry_after_does_not_take(seconds: Any) -> None:
    with pytest.raises(ValueError, match="takes seconds or the text of a Retry-After header"):
        RetryAfter(seconds)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (30, 30),
        (0.5, 0.5),
        ("120", 120),
        (" 1.5 ", 1.5),
        (-1, 0),
        ("-1", 0),
        (86_401, 86_400),
        (10**400, 86_400),
        (math.inf, 86_400),
        ("1e400", 86_400),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 2199 23:59:59 GMT", 86_400),
        (None, 30),
        ("", 30),
        ("soon", 30),
        ("nan", 30),
        ("Fri, 99 Dec 1999 23:59:59 GMT", 30),
    ],
)
def test_what_a_downstream_may_say_about_when_to_come_again(given: Any, seconds: float) -> None:
    assert RetryAfter(given).seconds == seconds


def test_the_date_of_a_header_is_in_utc_whatever_the_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        header = formatdate(time.time() + 600, usegmt=True)
        assert 595 <= RetryAfter(header).seconds <= 600
        assert 595 <= RetryAfter(header.replace("GMT", "-0000")).seconds <= 600
    finally:
        monkeypatch.undo()
        time.tzset()


def test_retry_after_in_the_trial_of_another_record_is_a_wait_and_no_outage(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "a":
            raise ValueError("bad")
        if len(batch) == 1 and len(told) < 2:
            told.append(1)
            raise RetryAfter(100)
        journal(batch)

    told: list[int] = []
    drill.handle(handler, max_attempts=2)
    drill.save("acme", "a", "b")
    drill.go_on()
    assert drill.circuit().opened == 0
    assert drill.states() == {"quarantined": 1, "handled": 1}
    assert any(later - earlier >= 99_000 for earlier, later in pairwise(drill.times))


def test_a_group_of_requests_that_are_all_told_to_wait_waits_for_the_longest(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise ExceptionGroup("of a TaskGroup", [RetryAfter(10), ExceptionGroup("inner", [RetryAfter(40)])])
        journal(batch)

    drill.handle(handler)
    drill.save("acme", "a")
    drill.go_on()
    assert drill.errors == []
    assert 40_000 <= drill.times[1] - drill.times[0] <= 40_100


# Rate limits


def test_a_pipelines_rate_is_kept_and_every_record_comes(drill: Drill) -> None:
    drill.handle(journal, rate_limit=RateLimit("600/m", burst=20))
    for tenant in ("a", "b", "c"):
        drill.save(tenant, *NUMBERS[:100])
    drill.go_on()
    assert drill.states() == {"handled": 300}
    # 20 at once, then ten a second.
    assert drill.times[-1] == pytest.approx(28_000, rel=0.02)
    assert len(drill.deployment.deliveries()) == 300


def test_a_tenants_rate_holds_no_other_tenant(drill: Drill) -> None:
    drill.handle(journal, tenant_rate_limit=RateLimit("60/m", burst=1))
    drill.save("acme", *NUMBERS[:10])
    drill.save("other", "a")
    drill.go_on(within_ms=1_000)
    assert drill.states("other") == {"handled": 1}
    drill.go_on()
    assert drill.states("acme") == {"handled": 10}
    assert drill.times[-1] == pytest.approx(9_000, rel=0.05)


def test_an_event_does_not_shorten_the_wait_for_a_rate(drill: Drill) -> None:
    drill.handle(journal, rate_limit=RateLimit("60/m", burst=1))
    drill.save("acme", "a", "b")
    drill.run_one()
    drill.save("acme", "c")
    assert not drill.run_one()
    (status,) = drill.standing()
    assert (status.state, status.held) == (State.WAITING, True)


def test_a_limit_of_calls_is_kept_however_many_records_a_call_has(drill: Drill) -> None:
    drill.handle(journal, rate_limit=("100000/s", "10 calls/s"), batch_size=20)
    for tenant in ("a", "b", "c"):
        drill.save(tenant, *NUMBERS[:200])
    drill.go_on()
    assert drill.states() == {"handled": 600}
    assert [len(numbers) for _, numbers in drill.calls] == [20] * 30
    assert drill.times[-1] == pytest.approx(2_900, rel=0.05)


@pytest.mark.parametrize("rate", ["1 calls/m", "1 records/m"])
def test_probes_of_an_open_circuit_keep_the_rate(drill: Drill, rate: str) -> None:
    times: list[int] = []

    def away(batch: Batch) -> None:
        times.append(drill.now_ms)
        if len(times) <= 12:
            raise ConnectionError("refused")
        journal(batch)

    drill.handle(away, rate_limit=rate)
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

    drill.handle(handler, max_attempts=1, rate_limit="1 calls/m")
    drill.save("acme", *"ab")
    drill.go_on()
    assert drill.states() == {"quarantined": 1, "handled": 1}
    # The trial of b goes on at once, so the call after it comes a minute later.
    assert calls == [(0, "ab"), (1, "ab"), (2, "a"), (2, "b"), (4, "b")]


@pytest.mark.parametrize(
    "given",
    [5, ("600/m", "60/s"), ("1 calls/s", "2 calls/s"), ("600/m", None), {"600/m"}, ("600/m", "1 calls/s", "1 calls/m")],
)
def test_limits_that_say_nothing_clear(given: object) -> None:
    with pytest.raises(InvalidPolicy, match=r"pipeline orders: rate_limit (holds|has two)"):
        pipeline("orders", rate_limit=given)(journal)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rate", ["600", "m/600", "0/m", "-1/s", "600/w", "1.5/s", "2000000/s", "", "600 / m", None, "10 calls", "10calls/s"]
)
def test_a_rate_that_cannot_be_read(rate: str) -> None:
    with pytest.raises(InvalidPolicy, match="rate limit"):
        RateLimit(rate)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, "10"])
def test_a_burst_that_cannot_be_kept(burst: int) -> None:
    with pytest.raises(InvalidPolicy, match="burst"):
        RateLimit("600/m", burst)


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


@pytest.mark.parametrize("deployment", [{"run_budget": 0.01}], indirect=True)
def test_a_tenant_with_much_to_do_lets_others_in_the_wait_queue_go_first(drill: Drill) -> None:
    drill.handle(journal, max_runs=1, batch_size=1)
    drill.save("large", *NUMBERS[:200])
    drill.run_one()
    drill.save("small", "a")
    drill.go_on(until=lambda: ("small", ["a"]) in drill.calls)
    assert len(drill.calls) < 150
    drill.go_on()
    assert drill.states() == {"handled": 201}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_runs", -1),
        ("max_runs", 1.5),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("soft_time_limit", 0),
        ("soft_time_limit", "5"),
        ("downstream_errors", ("ConnectionError",)),
        ("downstream_errors", (KeyboardInterrupt,)),
    ],
)
def test_an_option_out_of_range(option: str, value: object) -> None:
    options: dict[str, object] = {option: value}
    with pytest.raises(InvalidPolicy, match=f"pipeline invoices: {option}"):
        Pipeline("invoices", journal, LatencyNeutral(), 500, **options)  # type: ignore[arg-type]


# Pause


def hold(drill: Drill, tenant: str) -> None:
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.pauses (pipeline, tenant) VALUES ('invoices', %s)", (tenant,)
        )


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
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM taskbridge.pauses")
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
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM taskbridge.pauses")
    reconcile(drill.runtime, "invoices")
    drill.go_on()
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in "abcde"]


def test_a_resumption_whose_word_got_lost_is_found_by_a_base_round(drill: Drill) -> None:
    drill.handle(journal)
    hold(drill, "acme")
    drill.save("acme", "a")
    drill.run_one()
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM taskbridge.pauses")
    reconcile(drill.runtime, "invoices")
    drill.go_on(within_ms=1_000)
    assert drill.states() == {"handled": 1}


# The soft time limit


def test_a_handler_that_takes_too_long_is_told(drill: Drill) -> None:
    left: list[float] = []

    def slow(batch: Batch) -> None:
        left.append(batch.seconds_left)
        if len(batch) > 1:
            end = batch.seconds_left + 5
            while batch.seconds_left > -end:
                pass
        journal(batch)

    drill.handle(slow, soft_time_limit=0.1)
    drill.save("acme", "a", "b")
    drill.go_on()
    assert {type(error).__name__ for error in drill.errors} == {"SoftTimeLimitExceeded"}
    assert drill.states() == {"handled": 2}, "a batch that is too slow is halved"
    assert max(left) <= 0.1


def test_without_a_limit_there_is_all_the_time(drill: Drill) -> None:
    left: list[float] = []
    drill.handle(lambda batch: left.append(batch.seconds_left))
    drill.save("acme", "a")
    drill.go_on()
    assert left == [math.inf]


# The time budget


@pytest.mark.parametrize("deployment", [{"run_budget": 0.2}], indirect=True)
def test_a_slow_handler_is_given_what_it_gets_through_in_the_budget(drill: Drill) -> None:
    def slow(batch: Batch) -> None:
        time.sleep(0.005 * len(batch))
        journal(batch)

    drill.handle(slow, batch_size=100)
    drill.save("acme", *NUMBERS[:300])
    drill.go_on()
    sizes = [len(numbers) for _, numbers in drill.calls]
    assert sizes[0] == 100, "nothing is known yet"
    assert max(sizes[1:]) <= 45, sizes
    assert drill.states() == {"handled": 300}


@pytest.mark.parametrize("deployment", [{"run_budget": 0.1}], indirect=True)
def test_lone_events_do_not_split_later_batches_where_a_call_costs_by_itself(drill: Drill) -> None:
    def request(batch: Batch) -> None:
        time.sleep(0.03)
        journal(batch)

    drill.handle(request, batch_size=100)
    for number in range(5):
        drill.save("acme", f"lone {number}")
        drill.go_on()
    drill.calls.clear()
    drill.save("acme", *NUMBERS)
    drill.go_on()
    assert len(drill.calls) <= 12, [len(numbers) for _, numbers in drill.calls]
    assert drill.states() == {"handled": 1_005}


def test_to_be_asked_to_wait_is_no_failure(drill: Drill) -> None:
    def wait_thrice_then_fail(batch: Batch) -> None:
        if len(drill.calls) <= 3:
            raise RetryAfter(1)
        if len(drill.calls) == 4:
            raise ConnectionError("refused")
        journal(batch)

    drill.handle(wait_thrice_then_fail)
    drill.save("acme", "a")
    drill.go_on()
    assert drill.states() == {"handled": 1}
    assert drill.times[4] - drill.times[3] <= 501, "the first back-off"
