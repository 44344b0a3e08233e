"""How many calls a handler gets where a call costs something by itself, and how long one call holds its slot.

Each cost has a pipeline of its own, so that what a process has learned of one says nothing of another. First come some
lone events, which are batches of one record each, then many records of one tenant. The baseline is the same worker with
a time budget that never ends: it delivers batches of `batch_size`, whatever they take.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from typing import Final, NamedTuple, cast

import redis

from benchmarks.benchmark import Benchmark, Option
from benchmarks.messages import add
from benchmarks.report import Headline, Report, Table, Target
from benchmarks.stage import stage, wait_until, worker
from taskbridge.process.pace import MOST_BUDGETS
from taskbridge.process.runtime import Runtime

__all__ = ["BATCHES", "BATCH_SIZE", "COSTS", "Cost", "take"]

BATCH_SIZE: Final = 100
OURS: Final = "ours"
FIXED: Final = "fixed"
NEVER_SPENT: Final = "3600"
"""The longest time budget there may be, in seconds."""
REQUEST: Final = 0.3
"""What a usual request to an HTTP API takes: the cost that the target is about."""


class Cost(NamedTuple):
    """Seconds that a call of the handler takes by itself, and what each record adds."""

    by_itself: float
    per_record: float

    @property
    def pipeline(self) -> str:
        """The name of the pipeline whose handler takes as long."""
        return f"bench-{self.by_itself * 1000:.0f}-{self.per_record * 1000:.0f}"

    @property
    def text(self) -> str:
        """As people read it."""
        parts = [(self.by_itself, "call"), (self.per_record, "record")]
        return ", ".join(f"{seconds:g} s per {what}" for seconds, what in parts if seconds) or "nothing"


COSTS: Final = (
    Cost(0, 0),
    Cost(0.01, 0),
    Cost(REQUEST, 0),
    Cost(2, 0),
    Cost(0, 0.01),
    Cost(0, 0.3),
    Cost(0, 2),
    Cost(0.01, 0.01),
    Cost(REQUEST, 0.01),
    Cost(2, 0.01),
    Cost(2, 0.3),
)


class Call(NamedTuple):
    """A call of the handler, by the clock of the machine."""

    records: int
    started: float
    ended: float


class Handled(NamedTuple):
    """What the records of one tenant took: seconds from their events until all were handled, and the longest call."""

    records: int
    calls: int
    seconds: float
    longest: float

    @property
    def least_calls(self) -> int:
        """In how few calls so many records fit."""
        return ceil(self.records / BATCH_SIZE)

    @property
    def ratio(self) -> float:
        """Calls, as a ratio to the least possible."""
        return self.calls / self.least_calls

    @property
    def speed(self) -> float:
        """Records per second."""
        return self.records / self.seconds


def take(client: redis.Redis, cost: Cost, records: int) -> None:
    """Take the time of one call of the handler, and note it."""
    started = time.time()
    time.sleep(cost.by_itself + cost.per_record * records)
    client.rpush(_calls_key(cost), json.dumps(Call(records, started, time.time())))


def _measure(records: int, lone: int, seconds: float, dearest: float) -> Report:
    """Measure all costs up to `dearest`, ours and then the baseline."""
    costs = [cost for cost in COSTS if max(cost) <= dearest]
    options = ("--pool", "threads", "--concurrency", str(len(costs)))
    budgets: dict[str, Mapping[str, str]] = {OURS: {}, FIXED: {"TASKBRIDGE_RUN_BUDGET": NEVER_SPENT}}
    found = {}
    with stage() as (runtime, directory):
        for subject, budget in budgets.items():
            with worker(runtime, directory, *options, pipelines="benchmarks.batch_handlers", **budget):
                one = partial(_handled, runtime, subject, records, lone, seconds)
                # Where a call costs nothing the machine is what is measured, and nothing else may run meanwhile.
                free = [one(cost) for cost in costs if not any(cost)]
                with ThreadPoolExecutor(len(costs)) as together:
                    found[subject] = [*free, *together.map(one, [cost for cost in costs if any(cost)])]
        budget_seconds = runtime.settings.run_budget
    parameters = {"records": records, "lone": lone, "seconds": seconds, "dearest": dearest}
    return _report(parameters, costs, found[OURS], found[FIXED], budget_seconds)


def _handled(runtime: Runtime, subject: str, records: int, lone: int, seconds: float, cost: Cost) -> Handled:
    """Let lone events of a tenant be handled, one after the other, then many records, which take `seconds` at most."""
    if cost.per_record:
        records = min(records, max(2, int(seconds / cost.per_record)))
    runtime.redis.delete(_calls_key(cost))
    for number in range(1, lone + 1):
        add(runtime, cost.pipeline, [subject])
        _wait(runtime, cost, number)
    before = len(_calls(runtime, cost))
    began = time.time()
    add(runtime, cost.pipeline, [subject], records)
    _wait(runtime, cost, lone + records)
    calls = _calls(runtime, cost)[before:]
    longest = max(call.ended - call.started for call in calls)
    return Handled(records, len(calls), max(call.ended for call in calls) - began, longest)


def _wait(runtime: Runtime, cost: Cost, records: int) -> None:
    wait_until(lambda: sum(call.records for call in _calls(runtime, cost)) >= records, f"{cost.text}: all records", 600)


def _calls(runtime: Runtime, cost: Cost) -> list[Call]:
    return [Call(*json.loads(text)) for text in cast("list[str]", runtime.redis.lrange(_calls_key(cost), 0, -1))]


def _calls_key(cost: Cost) -> str:
    return f"bench-calls:{cost.pipeline}"


def _report(
    parameters: Mapping[str, float],
    costs: Sequence[Cost],
    ours: Sequence[Handled],
    fixed: Sequence[Handled],
    budget: float,
) -> Report:
    by_cost = dict(zip(costs, zip(ours, fixed, strict=True), strict=True))
    request = max((cost for cost in costs if not cost.per_record and cost.by_itself <= REQUEST), key=max)
    slow = max((cost for cost in costs if not cost.by_itself), key=max)
    requests, slowest = by_cost[request][0], by_cost[slow]
    return Report(
        parameters,
        [
            Table(
                f"Batches of up to {BATCH_SIZE}, after lone events",
                (
                    "a call costs",
                    "records",
                    "least calls",
                    "calls",
                    "ratio",
                    "longest call s",
                    "records/s",
                    f"longest call s, always {BATCH_SIZE}",
                    f"records/s, always {BATCH_SIZE}",
                    "ratio of records/s",
                ),
                [
                    (
                        cost.text,
                        our.records,
                        our.least_calls,
                        our.calls,
                        our.ratio,
                        our.longest,
                        our.speed,
                        base.longest,
                        base.speed,
                        our.speed / base.speed,
                    )
                    for cost, (our, base) in by_cost.items()
                ],
                "Records of one tenant, so one slot works at a time. Where a record costs much there are fewer of "
                "them, so that the measurement ends. More calls than the least are what a slot is given back for: "
                f"other tenants wait behind the longest call at the most, and a run's budget is {budget:g} s.",
            )
        ],
        [
            Target(f"calls, ratio to the least possible, at {request.text}", requests.ratio, 1.2),
            Target(f"longest call, s, at {slow.text}", slowest[0].longest, MOST_BUDGETS * budget),
            Target(
                f"records/s, ratio to fixed batches, at {request.text}",
                requests.speed / by_cost[request][1].speed,
                0.8,
                at_least=True,
            ),
        ],
        headlines=[
            Headline(
                f"calls for {requests.records:,} records after lone events, at {request.text}",
                requests.calls,
                "least possible",
                requests.least_calls,
            ),
            Headline(f"longest call, s, at {slow.text}", slowest[0].longest, "fixed batches", slowest[1].longest),
        ],
    )


BATCHES: Final = Benchmark(
    "batches",
    "How many calls of a handler that costs something by itself.",
    "Measure in how many calls of its handler the records of one tenant are handled after lone events, in batches of "
    f"up to {BATCH_SIZE}: where a call costs something by itself, as a request does, where each record does, and both. "
    f"The baselines are the least number of calls, and the same worker with batches of always {BATCH_SIZE}, which hold "
    "its slot for as long as they take.",
    _measure,
    (
        Option("records", 1_000, 2, 100_000, "Records of each tenant."),
        Option("lone", 5, 1, 1_000, "Lone events before them."),
        Option("seconds", 30.0, 0.01, 3_600, "Most time that the records themselves may cost; fewer records then."),
        Option("dearest", 2.0, 0.01, 2, "Leave out costs of more seconds."),
    ),
    {"records": 20, "lone": 1, "seconds": 1.0, "dearest": 0.01},
)
