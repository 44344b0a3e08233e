"""Arenas in processes of their own: each takes seeds and gives results, until one has a violation."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from tests.torture.arena import arena
from tests.torture.course import Result, harness_failed, run
from tests.torture.faults import FAULTS
from tests.torture.schedule import draw

__all__ = ["Broken", "Order", "in_arenas"]

TRIES: Final = 3


class Broken(Exception):
    """One arena after another cannot be opened; the message has the last one's trace."""


@dataclass(frozen=True)
class Order:
    """What all schedules of one command share. `keep`: where books of arenas are copied; `without`: guards."""

    only: Sequence[str] = tuple(FAULTS)
    margin: float = 1.0
    without: str | None = None
    keep: Path | None = None


def in_arenas(order: Order, seeds: Sequence[int], count: int) -> Iterator[Result]:
    """Yield the results of the schedules with `seeds` as they come; an arena with a violation is replaced by another.

    A schedule whose arena cannot be opened gets one more.

    Raises:
        Broken: several arenas in a row could not be opened.
    """
    left, running, broken, again = [*seeds][::-1], list[_Arena](), 0, set[int]()
    try:
        while left or running:
            while left and len(running) < count:
                running.append(_Arena(order))
                running[-1].send(left.pop())
            ready = wait([one.pipe for one in running])
            for one in [one for one in running if one.pipe in ready]:
                answer = one.receive()
                broken = 0 if isinstance(answer, Result) else broken + 1
                if broken == TRIES:
                    raise Broken(answer)
                if isinstance(answer, Result):
                    yield answer
                elif one.seed in again:
                    yield harness_failed(one.seed, answer)
                else:
                    again.add(one.seed)
                    left.append(one.seed)
                if left and isinstance(answer, Result) and not answer.violations:
                    one.send(left.pop())
                else:
                    running.remove(one)
                    one.close()
    finally:
        for one in running:
            one.close()


class _Arena:
    """One process with an arena; it ends when its pipe closes."""

    def __init__(self, order: Order) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, order))
        self._process.start()
        theirs.close()
        self.seed = -1

    def send(self, seed: int) -> None:
        self.seed = seed
        self.pipe.send(seed)

    def receive(self) -> Result | str:
        """Return the result, or why the arena could not be opened."""
        try:
            answer: Result | str = self.pipe.recv()
        except (EOFError, ConnectionError):
            return harness_failed(self.seed, "the process of the arena ended")
        return answer

    def close(self) -> None:
        self.pipe.close()
        self._process.join()


def _serve(pipe: Connection, order: Order) -> None:
    """Run the schedules whose seeds come through the pipe, until it closes."""
    subjects = {name: FAULTS[name].subject for name in order.only}
    try:
        with arena(order.without, order.keep) as runtime:
            while True:
                seed = pipe.recv()
                try:
                    result = run(runtime, draw(seed, subjects), order.margin)
                except Exception:
                    result = harness_failed(seed, traceback.format_exc())
                pipe.send(result)
    except (EOFError, ConnectionError):
        return
    except Exception:
        pipe.send(traceback.format_exc())
