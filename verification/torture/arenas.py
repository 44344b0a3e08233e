"""Arenas in processes of their own: each takes seeds and gives results, until one has a violation or hangs."""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psutil

from verification.torture.arena import arena
from verification.torture.course import Result, harness_failed, run
from verification.torture.faults import FAULTS, available
from verification.torture.schedule import draw

__all__ = ["Broken", "Order", "in_arenas"]

TRIES: Final = 3
WITHIN: Final = 900.0
"""Seconds after which a schedule counts as hung, its arena's start included. Most take less than one minute."""


class Broken(Exception):
    """One arena after another cannot be opened; the message has the last one's trace."""


@dataclass(frozen=True)
class Order:
    """What all schedules of one command share. `keep`: where books of arenas are copied; `without`: guards.

    `servers`: which of `verification.torture.faults.SERVERS` its arenas have.
    """

    only: Sequence[str] = tuple(available())
    margin: float = 1.0
    without: str | None = None
    keep: Path | None = None
    servers: Sequence[str] = ()


def in_arenas(order: Order, seeds: Sequence[int], count: int, within: float = WITHIN) -> Iterator[Result]:
    """Yield the results of the schedules with `seeds` as they come; an arena with a violation is replaced by another.

    A schedule whose arena cannot be opened gets one more. One that takes longer than `within` seconds came to nothing,
    and its arena is ended with all that it started.

    Raises:
        Broken: several arenas in a row could not be opened.
    """
    left, running, broken, again = [*seeds][::-1], list[_Arena](), 0, set[int]()
    try:
        while left or running:
            while left and len(running) < count:
                running.append(_Arena(order, within))
                running[-1].send(left.pop())
            for one, answer in _answers(running):
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


def _answers(running: Sequence[_Arena]) -> list[tuple[_Arena, Result | str]]:
    """Wait for the next answers of arenas, or until one of them has had its time, and is ended."""
    first = min(one.deadline for one in running)
    ready = wait([one.pipe for one in running], max(0.0, first - time.monotonic()))
    now = time.monotonic()
    return [
        (one, one.receive() if one.pipe in ready else one.hung())
        for one in running
        if one.pipe in ready or one.deadline < now
    ]


class _Arena:
    """One process with an arena; it ends when its pipe closes."""

    def __init__(self, order: Order, within: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, order))
        self._process.start()
        theirs.close()
        self.seed = -1
        self.deadline = math.inf
        self._within = within

    def send(self, seed: int) -> None:
        self.seed, self.deadline = seed, time.monotonic() + self._within
        self.pipe.send(seed)

    def receive(self) -> Result | str:
        """Return the result, or why the arena could not be opened."""
        try:
            answer: Result | str = self.pipe.recv()
        except (EOFError, ConnectionError):
            return harness_failed(self.seed, "the process of the arena ended")
        return answer

    def hung(self) -> Result:
        """End all, since the schedule has had its time; return its result."""
        return harness_failed(self.seed, f"no result within {self._within:g} s; it hung here:\n{self._end()}")

    def close(self) -> None:
        self.pipe.close()
        self._process.join(self._within)
        if self._process.is_alive():
            self._end()
        self._process.join()

    def _end(self) -> str:
        """Kill the process and all that it started; return where its threads stood, by py-spy."""
        stood = ""
        with suppress(psutil.Error):
            own = psutil.Process(self._process.pid)
            with suppress(OSError, subprocess.TimeoutExpired):
                dump = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(own.pid)]
                stood = subprocess.run(dump, capture_output=True, text=True, check=False, timeout=30).stdout
            own.suspend()  # it would start others in their place
            for one in (*own.children(recursive=True), own):
                with suppress(psutil.Error):
                    one.kill()
        return stood


def _serve(pipe: Connection, order: Order) -> None:
    """Run the schedules whose seeds come through the pipe, until it closes."""
    subjects = {name: FAULTS[name].subject for name in order.only}
    try:
        with arena(order.without, order.keep, order.servers) as runtime:
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
