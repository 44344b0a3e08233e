"""The rate limits under an injected clock: exact over long times, whoever asks, and in the order of asking."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Limits, RateLimit
from taskbridge.gate import Answer, Begun, Outcome
from tests.gate.crowd import PIPELINE, Crowd

HOUR = 3_600_000


@dataclass
class Asking:
    """Tenants that have records without end, deliver what they may, and ask again when they were told to.

    `times` are those of each record in milliseconds, `waits` what tenants were told, `served` who was served.
    """

    crowd: Crowd
    whole: RateLimit | None
    each: RateLimit | None
    wanted: int = 500
    seed: int = 1
    times: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    served: list[str] = field(default_factory=list)

    def ask(self, tenant: str) -> tuple[int, int]:
        limits = [limit for limit in (self.whole, self.each) if limit is not None and not limit.of_calls]
        at_least = min((limit.within(200) for limit in limits), default=self.wanted)
        token = self.crowd.tokens[tenant]
        whole, each = Limits.of("whole", self.whole), Limits.of("each", self.each)
        return self.crowd.gate.permit(RunKey(PIPELINE, tenant, token), self.wanted, at_least, whole, each)

    def work(self, tenants: list[str], seconds: float, *, lateness_ms: int = 0) -> None:
        """Let time pass; a tenant that was told to wait comes up to `lateness_ms` after it might."""
        lateness = random.Random(self.seed)  # noqa: S311 - not for secrets
        self.crowd.start(*tenants)
        end = self.crowd.now() + int(seconds * 1000)
        turns = [(self.crowd.now(), at, tenant) for at, tenant in enumerate(tenants)]
        heapq.heapify(turns)
        count = len(turns)
        while turns[0][0] < end:
            moment, _, tenant = heapq.heappop(turns)
            self.crowd.until(moment)
            permitted, wait_ms = self.ask(tenant)
            if permitted:
                self.times[tenant] += [self.crowd.now()] * permitted
                self.served.append(tenant)
            again = self.crowd.now() + wait_ms + (lateness.randint(0, lateness_ms) if wait_ms else 0)
            heapq.heappush(turns, (again, count, tenant))
            count += 1

    def total(self) -> int:
        return sum(map(len, self.times.values()))


def test_tenants_that_come_late_lose_nothing_while_the_burst_covers_it(crowd: Crowd) -> None:
    asking = Asking(crowd, RateLimit("100/s"), None)

    asking.work([f"tenant {at}" for at in range(8)], 120, lateness_ms=300)

    assert 12_000 * 0.99 <= asking.total() <= 12_000 * 1.01 + 100


@pytest.mark.parametrize(("rate", "burst"), [("100/s", 5), ("50/m", 3)])
def test_in_no_stretch_of_time_go_more_than_the_rate_and_the_burst_allow(
    crowd: Crowd, rate: str, burst: int | None
) -> None:
    limit = RateLimit(rate, burst)
    asking = Asking(crowd, limit, None, wanted=30)

    asking.work([f"tenant {at}" for at in range(5)], 3_000 * limit.interval_us / 1_000_000)

    delivered = sorted(moment for times in asking.times.values() for moment in times)
    # What is paid for ahead goes as one.
    at_once = limit.most + limit.within(200)
    assert len(delivered) > 2_000
    for length in (1, 10, 100, 1_000):
        for first, last in zip(delivered, delivered[length:], strict=False):
            assert length + 1 <= at_once + (last - first + 2) * 1_000 / limit.interval_us


@pytest.mark.parametrize(
    ("limit", "burst"),
    [
        (RateLimit("100/s"), 100),
        (RateLimit("100/s", 3), 3),
        (RateLimit("7/m"), 1),
    ],
    ids=str,
)
def test_after_a_quiet_time_the_burst_goes_at_once_and_no_more(crowd: Crowd, limit: RateLimit, burst: int) -> None:
    crowd.start("a")
    for _ in range(3):
        assert Asking(crowd, limit, None).ask("a") == (burst, 0)
        permitted, wait_ms = Asking(crowd, limit, None).ask("a")
        assert permitted == 0
        assert wait_ms > 0
        crowd.passes(HOUR)
        assert Asking(crowd, limit, None).ask("a") == (limit.within(200), 0), "what was paid for"
        crowd.passes(HOUR)


def test_a_limit_of_each_tenant_within_one_of_the_pipeline(crowd: Crowd) -> None:
    asking = Asking(crowd, RateLimit("20/s"), RateLimit("8/s"))

    asking.work(["a"], 100)
    assert 800 * 0.99 <= asking.total() <= 800 * 1.01 + 8, "one alone has its own limit"
    crowd.settle("a")

    asking = Asking(crowd, RateLimit("20/s"), RateLimit("8/s"))
    asking.work(["b", "c", "d", "e"], 100)
    assert 2_000 * 0.99 - 8 <= asking.total() <= 2_000 * 1.01 + 20, "many have the pipeline's"
    for times in asking.times.values():
        assert len(times) == pytest.approx(500, rel=0.03), "and share it evenly"


def test_who_waits_is_served_in_the_order_of_asking(crowd: Crowd) -> None:
    tenants = [f"tenant {at}" for at in range(10)]
    asking = Asking(crowd, RateLimit("2/s", 1), None)

    asking.work(tenants, 100)

    assert asking.served[:20] == tenants * 2
    rounds = [asking.served[at : at + 10] for at in range(0, 190, 10)]
    assert all(sorted(served) == sorted(tenants) for served in rounds)


def test_what_is_paid_for_is_given_once_whatever_comes_between(crowd: Crowd) -> None:
    crowd.start("a", "b")
    asking = Asking(crowd, RateLimit("10/s", 1), None)
    assert asking.ask("a") == (1, 0)
    permitted, wait_ms = asking.ask("a")
    assert permitted == 0

    crowd.settle("a", Outcome.RETRY, failed=False, retry_ms=wait_ms)
    assert asking.ask("b")[0] == 0, "it is behind"
    crowd.deadline_passes("a")
    assert isinstance(crowd.begin("a"), Begun)

    assert asking.ask("a") == (2, 0)
    assert Asking(crowd, RateLimit("10/s", 1), None, wanted=1).ask("a")[0] == 0
    crowd.passes(HOUR)
    assert asking.ask("a") == (1, 0), "no more than was wanted"


def test_a_run_that_was_replaced_may_deliver_nothing_and_pays_nothing(crowd: Crowd) -> None:
    crowd.start("a")
    late = crowd.tokens["a"]
    assert crowd.deadline_passes("a") is Answer.REISSUED
    limit = RateLimit("1/s")

    assert crowd.gate.permit(RunKey(PIPELINE, "a", late), 5, 1, Limits(limit), Limits(limit)) == (0, 0)
    assert crowd.lifetime(crowd.keys.pipeline_rate(PIPELINE)) == -2
    assert crowd.gate.permit(RunKey(PIPELINE, "idle", late), 5, 1, Limits(limit), Limits(limit)) == (0, 0)
    assert crowd.lifetime(crowd.keys.runner(PIPELINE, "idle")) == -2


@pytest.mark.parametrize("unit", ["", " calls"], ids=["records", "calls"])
def test_the_clocks_of_limits_go_by_themselves(crowd: Crowd, unit: str) -> None:
    crowd.start("a")
    asking = Asking(crowd, RateLimit(f"10{unit}/m"), RateLimit(f"1{unit}/m"))
    asking.ask("a")
    asking.ask("a")

    keys = crowd.keys
    whole, each = (keys.pipeline_calls, keys.tenant_calls) if unit else (keys.pipeline_rate, keys.tenant_rate)
    left = [crowd.lifetime(whole(PIPELINE)), crowd.lifetime(each(PIPELINE, "a"))]

    assert 12_000 < left[0] <= 13_001, "when all is worked off, and a second"
    assert 120_000 < left[1] <= 121_001


@pytest.mark.parametrize(("rate", "seconds"), [("10 calls/s", 100), ("500 calls/s", 4)])
def test_as_many_calls_go_as_the_rate_says_whatever_their_size(crowd: Crowd, rate: str, seconds: int) -> None:
    limit = RateLimit(rate)
    asking = Asking(crowd, limit, None, wanted=70)

    asking.work(["tenant"], seconds)

    expected = seconds * 1_000_000 / limit.interval_us
    assert expected * 0.99 - 1 <= len(asking.served) <= expected * 1.01 + limit.most
    assert asking.total() == 70 * len(asking.served), "a call may have all the records that it wants"
    calls = sorted({moment for times in asking.times.values() for moment in times})
    at_once = limit.most + 1
    for length in (1, 10, 100):
        for first, last in zip(calls, calls[length:], strict=False):
            assert length + 1 <= at_once + (last - first + 2) * 1_000 / limit.interval_us


def test_limits_of_records_and_of_calls_hold_both(crowd: Crowd) -> None:
    crowd.start("a", "b")
    whole, each = Limits.of("whole", ("100/s", RateLimit("10 calls/s", 2))), Limits.of("each", "5 calls/s")

    def ask(tenant: str, wanted: int) -> tuple[int, int]:
        return crowd.gate.permit(RunKey(PIPELINE, tenant, crowd.tokens[tenant]), wanted, 20, whole, each)

    assert ask("a", 60) == (60, 0)
    assert ask("a", 10) == (0, 200), "the tenant has had its call"
    assert ask("b", 100) == (0, 100), "the pipeline's calls are used up, and so are its records"
    crowd.passes(200)
    assert ask("a", 10) == (10, 0), "what was paid for"
    assert ask("b", 100) == (30, 0), "as many records as there were for it"
