"""A day of bursts under the shipped scaling rule, and under one that looks at queues only; no cluster is needed.

`python -m verification.scaling` prints the tables, also into docs/explanation/capacity.md. The rule is read from
deploy/kubernetes. In steps of a second, slots do first events before imports; within a step, work is even.
Each 15 s the HorizontalPodAutoscaler computes as Kubernetes's does, and pods take a while to start.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from verification.printing.printed import Printed

__all__ = ["PAGE", "Result", "days", "load", "markdown", "slots_of_a_worker"]

ROOT: Final = Path(__file__).resolve().parents[1]
MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
PAGE: Final = Printed(ROOT / "docs" / "explanation" / "capacity.md", "scaling")
DAY: Final = 86_400
HANDLER_SECONDS: Final = 0.2
"""What a handler takes in a run of a first event: it waits for another system."""
CALL_SECONDS: Final = 0.05
"""What a first event waits for if imports keep all slots busy: one call of a handler (`latency_budget`)."""
STARTS_WITHIN: Final = 40
"""Seconds until a new pod works: scheduled, its image there, its worker started."""
SYNC: Final = 15
"""Seconds between two rounds of the HPA, and between two scrapes."""
TOLERANCE: Final = 0.1
IMPORTS: Final = {6 * 3600: (40, 300), 13 * 3600: (200, 60), 20 * 3600: (10, 1_800)}
"""When imports begin: of how many tenants, and how many seconds of work each has."""
STORMS: Final = {10 * 3600 + 600: 2_000, 15 * 3600 + 1_800: 5_000}
"""When tenants have their first event all at once, and how many."""


def run_seconds() -> float:
    """Return how long the run of a first event takes a slot: the measured CPU time of a worker, and the handler."""
    figures = json.loads((ROOT / "docs" / "explanation" / "benchmarks.json").read_text(encoding="utf-8"))
    storm = next(table for table in figures["storm"]["report"]["tables"] if table["title"] == "CPU time")
    costs = dict(zip(storm["columns"], storm["rows"][0], strict=True))
    return HANDLER_SECONDS + float(costs["worker main"] + costs["worker children"]) / 1000


def arrivals(seed: int = 1) -> Iterator[int]:
    """Yield how many tenants have a first event in each second of the day: quiet nights, office hours, short surges."""
    chance, surge_ends = random.Random(seed), 0  # noqa: S311 - not a secret
    for second in range(DAY):
        hour = second / 3600
        rate = 2 + 58 * max(0.0, math.sin(math.pi * (hour - 7) / 12)) if 7 <= hour <= 19 else 2.0
        if chance.random() < 1 / 3600:
            surge_ends = second + chance.randint(20, 120)
        rate *= 3 if second < surge_ends else 1
        yield max(0, round(chance.gauss(rate, math.sqrt(rate)))) + STORMS.get(second, 0)


def load(name: str, kind: str) -> Any:
    """Return the manifest of a kind in a file of deploy/kubernetes."""
    documents = yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8"))
    return next(document for document in documents if document["kind"] == kind)


def slots_of_a_worker() -> int:
    """Return the --concurrency of the shipped Deployment."""
    command = load("worker.yaml", "Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
    return int(command[command.index("--concurrency") + 1])


@dataclass
class Autoscaler:
    """The HorizontalPodAutoscaler that KEDA makes of a ScaledObject.

    `target` is for each replica; `up` and `down` are `scaleUp` and `scaleDown` of its `behavior`.
    """

    least: int
    most: int
    target: float
    up: Mapping[str, Any]
    down: Mapping[str, Any]
    asked: list[tuple[int, int]] = field(default_factory=list)
    events: list[tuple[int, int]] = field(default_factory=list)
    """When the number of replicas changed, and by how much."""

    def replicas(self, now: int, current: int, value: float) -> int:
        """Return how many replicas there are to be if the metric's total is `value`."""
        wanted = current
        if abs(value / (self.target * current) - 1) > TOLERANCE:
            wanted = math.ceil(value / self.target)
        self.asked.append((now, min(self.most, max(self.least, wanted))))
        lately = {
            at: [count for when, count in self.asked if when > now - max(1, rules["stabilizationWindowSeconds"])]
            for at, rules in (("up", self.up), ("down", self.down))
        }
        wanted = max(min(lately["up"]), min(current, max(lately["down"])))
        if wanted > current:
            wanted = min(wanted, max(self._allowed(now, current, policy, 1) for policy in self.up["policies"]))
        elif wanted < current:
            wanted = max(wanted, min(self._allowed(now, current, policy, -1) for policy in self.down["policies"]))
        if wanted != current:
            self.events.append((now, wanted - current))
        self.asked = [one for one in self.asked if one[0] > now - 3600]
        return wanted

    def _allowed(self, now: int, current: int, policy: Mapping[str, Any], sign: int) -> int:
        before: int = current - sum(
            by for at, by in self.events if at > now - policy["periodSeconds"] and by * sign > 0
        )
        if policy["type"] == "Pods":
            return before + sign * int(policy["value"])
        changed = before * (1 + sign * float(policy["value"]) / 100)
        return math.ceil(changed) if sign > 0 else math.floor(changed)


@dataclass
class Result:
    """A day: the mean replicas of each hour, the scale events, and how long first events waited (seconds, how many)."""

    replicas: list[float]
    events: list[tuple[int, int]]
    waits: list[tuple[float, int]]

    @property
    def flaps(self) -> int:
        """How often workers were stopped and others started within 10 minutes."""
        pairs = zip(self.events, self.events[1:], strict=False)
        return sum(by < 0 < then and at - before <= 600 for (before, by), (at, then) in pairs)

    def changes(self, first: int, last: int) -> int:
        """Return how many scale events there were in the hours from `first` to before `last`."""
        return sum(first * 3600 <= at < last * 3600 for at, _ in self.events)

    def wait(self, share: float) -> float:
        """Return the longest wait of this share of the first events, those that waited least."""
        left = share * sum(count for _, count in self.waits)
        for seconds, count in sorted(self.waits):
            left -= count
            if left <= 0:
                return seconds
        return 0.0


Rule = Callable[[float, float], float]
"""Returns the metric from busy slots and waiting runs."""


def by_load(busy: float, waiting: float) -> float:
    """Return what the query in scaledobject.yaml does."""
    return busy + waiting / 60


def by_queue(_busy: float, waiting: float) -> float:
    """Return how many runs wait, as KEDA's scaler for lists in Redis would."""
    return waiting


def shipped() -> Result:
    """Return the day with everything as in deploy/kubernetes."""
    spec = load("scaledobject.yaml", "ScaledObject")["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return simulate(by_load, float(spec["triggers"][0]["metadata"]["threshold"]), behavior)


def naive() -> Result:
    """Return the day with the length of the queues, KEDA's default of 5 for each worker, and the HPA's defaults."""
    quick = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    up = {"stabilizationWindowSeconds": 0, "policies": [*quick, {"type": "Pods", "value": 4, "periodSeconds": 15}]}
    return simulate(by_queue, 5.0, {"scaleUp": up, "scaleDown": {"stabilizationWindowSeconds": 300, "policies": quick}})


def days() -> dict[str, Result]:
    """Return the day under both rules."""
    return {"as shipped": shipped(), "length of the queues": naive()}


def simulate(rule: Rule, target: float, behavior: Mapping[str, Any]) -> Result:
    """Simulate the day with a rule, its target for each worker, and the HPA's behavior."""
    spec, slots, each = load("scaledobject.yaml", "ScaledObject")["spec"], slots_of_a_worker(), run_seconds()
    least, most = spec["minReplicaCount"], spec["maxReplicaCount"]
    scaler = Autoscaler(least, most, target, behavior["scaleUp"], behavior["scaleDown"])
    starting: list[int] = []
    """When each pod that is not ready will be."""
    replicas, firsts, imports = least, 0.0, list[float]()
    busy_samples = deque[float](maxlen=4)
    result = Result([0.0] * 24, scaler.events, [])
    for second, came in enumerate(arrivals()):
        tenants, work = IMPORTS.get(second, (0, 0))
        imports += [float(work)] * tenants
        starting = [at for at in starting if at > second]
        capacity = float((replicas - len(starting)) * slots)
        firsts += came
        done = min(firsts, capacity / each)
        firsts -= done
        served = min(len(imports), math.floor(capacity - done * each))
        busy, waiting = done * each + served, firsts + len(imports) - served
        # A run of an import takes a second, then it is the next tenant's turn.
        imports = imports[served:] + [left - 1 for left in imports[:served] if left > 1]
        result.waits.append((firsts * each / capacity + (CALL_SECONDS if waiting else 0.0), came))
        result.replicas[second // 3600] += replicas / 3600
        if second % SYNC == 0:
            busy_samples.append(busy)
            wanted = scaler.replicas(second, replicas, rule(sum(busy_samples) / len(busy_samples), waiting))
            starting += [second + STARTS_WITHIN] * max(0, wanted - replicas)
            del starting[: max(0, replicas - wanted)]
            replicas = wanted
    return result


def markdown(days: Mapping[str, Result]) -> str:
    """Return days as Markdown, by the name of their rule."""
    lines = [
        "| rule | scale events | most in an hour | undone within 10 min | worker hours | wait: p95 | p99 | longest |",
        f"|{' --- |'}{' ---: |' * 7}",
    ]
    for name, day in days.items():
        most = max(day.changes(hour, hour + 1) for hour in range(24))
        waits = " | ".join(f"{day.wait(share):,.1f} s" for share in (0.95, 0.99, 1))
        hours = sum(day.replicas)
        lines.append(f"| {name} | {len(day.events)} | {most} | {day.flaps} | {hours:,.0f} | {waits} |")
    lines += ["", f"| hours | {' | '.join(f'workers, {name} | scale events' for name in days)} |", f"|{' ---: |' * 5}"]
    for first in range(0, 24, 3):
        of_days = (
            f"{sum(day.replicas[first : first + 3]) / 3:.1f} | {day.changes(first, first + 3)}" for day in days.values()
        )
        lines.append(f"| {first} to {first + 3} | {' | '.join(of_days)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write(markdown(days()))
    print(PAGE.shown())  # noqa: T201 - what it is for
