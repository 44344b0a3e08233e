"""Drawing schedules: one seed, one schedule."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from verification.torture.acts import SOFT_TIME_LIMIT
from verification.torture.workers import Kind

__all__ = ["HARD_LIMIT", "Planned", "Schedule", "draw"]

HARD_LIMIT: Final = SOFT_TIME_LIMIT + 1.0
"""Seconds of a hard time limit, so that it meets who ignores the soft one."""


@dataclass(frozen=True)
class Planned:
    """One fault to come. `part` is a share from 0 to 1, which each fault turns into a length of its own."""

    fault: str
    pause: float
    """Seconds before it."""
    moment: float
    """Seconds between the begin of a delivery and the strike, where the fault strikes a run."""
    part: float
    successor: Kind
    """The worker that takes the place of one that was struck."""


@dataclass(frozen=True)
class Schedule:
    """The faults in their order; those of one group strike together."""

    seed: int
    tenants: int
    groups: tuple[tuple[Planned, ...], ...]


def draw(seed: int, subjects: Mapping[str, str]) -> Schedule:
    """Draw three or more faults of `subjects` (what each strikes, by name); two that strike together differ in that."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def plan(fault: str) -> Planned:
        minutes = chance.choice((-1, 1)) * chance.randint(2, 30) if fault == "clock_moved" else None
        return Planned(
            fault,
            pause=chance.uniform(0.0, 0.4),
            moment=chance.uniform(0.0, 0.4),
            part=chance.random(),
            successor=Kind(
                "prefork" if fault == "hard_limit" else chance.choice(("prefork", "threads", "solo")),
                chance.choice((1, 3, 7, 50)),
                None if minutes is None else minutes * 60.0,
                fault == "handler_async",
                HARD_LIMIT if fault == "hard_limit" else None,
            ),
        )

    groups: list[tuple[Planned, ...]] = [(plan(chance.choice([*subjects])),) for _ in range(2)]
    first = chance.choice([*subjects])
    others = [fault for fault in subjects if subjects[fault] != subjects[first]]
    groups.append((plan(first), *([plan(chance.choice(others))] if others else [])))
    chance.shuffle(groups)
    return Schedule(seed, chance.randint(1, 3), tuple(groups))
