"""Visits every state of the protocol, and finds the shortest way to one that must not be.

The quiet end is not one path but all of them: from every state, whatever is at work goes on in any order, and what
waits for time to pass (a deadline, a pass) moves when nothing is at work. None of these ways may end, or go round
for ever, short of the end. States are settled from the end: a state is good if all its quiet steps lead to good
states.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from .protocol import Breach, Faults, Guards, Kind, Step, World, describe, first_world, is_finished, steps

__all__ = ["EVERY_GUARD", "Finding", "search"]

EVERY_GUARD = Guards()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search came to: how many states there are, and what is wrong with one of them (empty: nothing)."""

    states: int
    wrong: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.wrong:
            return f"{self.states} states, nothing wrong"
        return "\n".join((f"{self.wrong} (found among {self.states} states)", *self.trace))


@dataclass(slots=True)
class _Graph:
    """States in the order they were found: so the way back over `parents` is a shortest one."""

    worlds: list[World]
    index: dict[World, int]
    parents: list[int]
    quiet: list[list[int]] = field(default_factory=list)


def search(
    records: int,
    faults: Faults,
    guards: Guards = EVERY_GUARD,
    *,
    events: int | None = None,
    workers: int = 2,
    lookers: int = 1,
    tolerated: frozenset[Breach] = frozenset(),
    is_end: Callable[[World], bool] = is_finished,
) -> Finding:
    """Visit every state that can be reached and return the first breach, else the first state with a bad quiet end.

    Args:
        records: how many records are committed, at most.
        faults: what goes wrong, at most.
        guards: what the protocol is careful about.
        events: how many events come, at most; by default one for each record.
        workers: how many runs can be under way at once, frozen ones included.
        lookers: how many passes of poller and reconciler can be under way at once, frozen ones included.
        tolerated: breaches that these faults are allowed to cause.
        is_end: where a quiet end must come to.
    """
    with _no_garbage_collection():
        return _search(
            first_world(records, records if events is None else events, faults, workers, lookers),
            guards,
            tolerated,
            is_end,
        )


def _search(first: World, guards: Guards, tolerated: frozenset[Breach], is_end: Callable[[World], bool]) -> Finding:
    graph = _Graph([first], {first: 0}, [0])
    for at, world in enumerate(graph.worlds):
        breaking = _visit(graph, at, world, guards, tolerated)
        if breaking is not None and breaking.breach is not None:
            trace = [*_trace(graph, at, guards), _line(breaking)]
            return Finding(len(graph.worlds), f"I1: {breaking.breach.value}", trace)
    return _judge_quiet_ends(graph, guards, is_end)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """States are tuples without cycles: there is nothing to find, and to look for it takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _visit(graph: _Graph, at: int, world: World, guards: Guards, tolerated: frozenset[Breach]) -> Step | None:
    """Add what can be reached from `world` and return a step that breaks I1; `search` walks over the growing list."""
    by_kind: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for step in steps(world, guards):
        if step.breach is not None and step.breach not in tolerated:
            return step
        found = graph.index.setdefault(step.world, len(graph.worlds))
        if found == len(graph.worlds):
            graph.worlds.append(step.world)
            graph.parents.append(at)
        by_kind[step.kind].append(found)
    graph.quiet.append(by_kind[Kind.WORK] or by_kind[Kind.CLOCK])
    return None


def _judge_quiet_ends(graph: _Graph, guards: Guards, is_end: Callable[[World], bool]) -> Finding:
    good = [is_end(world) for world in graph.worlds]
    missing = [len(ends) for ends in graph.quiet]
    before: list[list[int]] = [[] for _ in graph.worlds]
    for at, ends in enumerate(graph.quiet):
        for end in ends:
            before[end].append(at)
    ready = deque(at for at, is_good in enumerate(good) if is_good)
    while ready:
        for at in before[ready.popleft()]:
            missing[at] -= 1
            if missing[at] == 0 and not good[at]:
                good[at] = True
                ready.append(at)
    if all(good):
        return Finding(len(good))
    at = good.index(False)
    wrong = "I3, I4: a quiet end leaves a record or a key behind"
    return Finding(len(good), wrong, _trace(graph, at, guards) + _bad_end(graph, at, good, guards))


def _trace(graph: _Graph, at: int, guards: Guards) -> list[str]:
    way = [at]
    while way[-1] != 0:
        way.append(graph.parents[way[-1]])
    way.reverse()
    return [_line(_step(graph, *pair, guards)) for pair in pairwise(way)]


def _bad_end(graph: _Graph, at: int, good: list[bool], guards: Guards) -> list[str]:
    """Return a quiet way from a bad state to where it ends or comes round again."""
    lines = ["-- from here on it is quiet --"]
    visited = {at}
    while True:
        bad = [end for end in graph.quiet[at] if not good[end]]
        if not bad:
            return [*lines, "nothing more happens"]
        following = next((end for end in bad if end not in visited), bad[0])
        lines.append(_line(_step(graph, at, following, guards)))
        if following in visited:
            return [*lines, "and so on for ever"]
        visited.add(following)
        at = following


def _step(graph: _Graph, before: int, after: int, guards: Guards) -> Step:
    return next(step for step in steps(graph.worlds[before], guards) if step.world == graph.worlds[after])


def _line(step: Step) -> str:
    return f"{step.text:<55} {describe(step.world)}"
