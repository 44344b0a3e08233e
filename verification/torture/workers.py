"""The workers of an arena, and the supervisor that starts those again that ended by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from taskbridge.embedded import Guarded
from taskbridge.embedded.files import open_log
from tests.deployment import ENDS_WITHIN, ROOT, worker_command
from tests.waiting import wait_until
from verification.torture.ledger import Delivery, Ledger
from verification.torture.producer import LONGEST_CALL

__all__ = ["LONG_CALL", "Kind", "Look", "Worker", "Workers", "longest_full"]

STARTS_WITHIN = 40.0
LOOKS_EVERY = 0.1
UNRECOVERABLE: Final = "Unrecoverable error: "
"""What Celery writes before the error that ends a worker."""
PROXIED: Final = 0
"""The place of the worker that reaches Redis by a proxy."""
LONG_CALL: Final = 1.0
"""Seconds of a call that is longer than any of a flood. A slot that is in a shorter one comes free within the bound."""


@dataclass(frozen=True)
class Kind:
    """What a worker is like."""

    pool: str
    batch_size: int
    clock_seconds: float | None = None
    is_async: bool = False
    """Its handler is a coroutine."""
    hard_limit: float | None = None
    """Seconds after which Celery kills the pool process of a task. Only the pool prefork does."""

    @property
    def options(self) -> list[str]:
        limit = [] if self.hard_limit is None else ["--time-limit", str(self.hard_limit)]
        return ["-P", self.pool, *([] if self.pool == "solo" else ["-c", str(self.slots)]), *limit]

    @property
    def slots(self) -> int:
        """How many calls of the handler it has at a time."""
        return 1 if self.pool == "solo" else 3


@dataclass
class Worker:
    """One `celery -A taskbridge worker` and its pool processes: a process group that ends with this process."""

    name: str
    kind: Kind
    log: Path
    process: Guarded
    frozen: bool = False
    leaving_since: float | None = None
    _began: bool = False

    @property
    def was_ready(self) -> bool:
        self._began = self._began or " ready." in self.text()
        return self._began

    @property
    def is_ready(self) -> bool:
        return not self.frozen and self.leaving_since is None and self.process.poll() is None and self.was_ready

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def has_died(self) -> bool:
        """Whether an error ended it, and neither its own will nor a signal."""
        return UNRECOVERABLE in self.text()

    def last_words(self) -> str:
        """Return the last line that tells why it ended."""
        lines = [line for line in self.text().splitlines() if line[:1] not in (" ", "[", "")]
        return f"status {self.process.poll()}: {lines[-1] if lines else ''}"

    def ports(self) -> list[set[int]]:
        """Return the ports of the connections of its own process and of each of its pool."""
        found: list[set[int]] = []
        with suppress(psutil.Error):  # it may be struck meanwhile
            own = psutil.Process(self.process.pid)
            processes = (own, *own.children(recursive=True))
            found += [{one.laddr.port for one in process.net_connections()} for process in processes]
        return found

    def signal_all(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


class Look(NamedTuple):
    """What the supervisor saw, and how many seconds after its look before."""

    at: float
    seconds: float
    slots: Mapping[str, int]
    """How many slots each worker has that was ready, by name."""

    @property
    def has_two(self) -> bool:
        """Whether two workers were ready: one alone may have a single slot, and a handler in it that takes long."""
        return len(self.slots) >= 2


def longest_full(looks: Sequence[Look], calls: Sequence[Delivery], latest: float) -> float:
    """Return the longest time from a look until `latest` to the first slot that came free after it.

    Only long calls count that were under way at that look: where another one began later, a slot had come free. So it
    is one call's length at the most; one that takes longer than any that is drawn is no excuse. Seconds in which fewer
    than two workers were ready are not in it.
    """
    if not looks:
        return 0.0
    long = [one for one in calls if (looks[-1].at if one.left is None else one.left) - one.began >= LONG_CALL]
    found = [
        _seconds_full(looks[number:], [one for one in long if _is_under_way(one, look)])
        for number, look in enumerate(looks)
        if look.at <= latest
    ]
    return min(max(found, default=0.0), LONGEST_CALL)


def _seconds_full(looks: Sequence[Look], calls: Sequence[Delivery]) -> float:
    """Return for how long these calls alone were in every slot, from the first look on."""

    def is_full(look: Look) -> bool:
        used = Counter(one.worker for one in calls if _is_under_way(one, look))
        return all(used[name] >= slots for name, slots in look.slots.items())

    return sum(look.seconds for look in takewhile(is_full, looks) if look.has_two)


def _is_under_way(call: Delivery, look: Look) -> bool:
    # Nobody notes the end of a call whose process was killed.
    return call.began <= look.at < (call.began + LONGEST_CALL if call.left is None else call.left)


@dataclass
class Workers:
    """Three workers, each in a place of its own; `up` is cleared while a server is down, and nothing starts then."""

    books: Path
    environment: Mapping[str, str]
    proxied: Mapping[str, str]
    """What lets the worker in the first place reach Redis by a proxy."""
    up: threading.Event = field(default_factory=threading.Event)
    self_exits: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Workers that ended before they were ready: a server was away."""
    hung: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    """Workers that were ready and that an error ended."""

    def __post_init__(self) -> None:
        self._number = 0
        self._places: list[Worker] = []
        self._leaving: list[Worker] = []
        self._changing = threading.RLock()
        self._closed = threading.Event()
        self._looks: list[Look] = []
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def open(self, kinds: list[Kind]) -> None:
        """Start one worker per kind, wait until all are ready, and begin to watch them."""
        self._places = [self._start(kind, place) for place, kind in enumerate(kinds)]
        self.wait_until_ready(len(kinds))
        self._supervisor.start()

    def wait_until_ready(self, count: int) -> None:
        wait_until(lambda: len(self.ready()) >= count, f"{count} workers ready", STARTS_WITHIN)

    def take_notes(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return what was noted since the last time: self-exits, refusals, those that hung, and those that died."""
        with self._changing:
            notes = self.self_exits, self.refusals, self.hung, self.died
            self.self_exits, self.refusals, self.hung, self.died = [], [], [], []
            return notes

    def ready(self) -> list[Worker]:
        with self._changing:
            return [worker for worker in self._places if worker.is_ready]

    def behind_proxy(self) -> Worker:
        """Return the worker that reaches Redis by a proxy, ready or not."""
        with self._changing:
            return self._places[PROXIED]

    def seconds_without(self, since: float, until: float) -> float:
        """Return for how long between these times fewer than two workers were ready.

        Give or take the time between two looks of the supervisor.
        """
        return sum(look.seconds for look in self._looks_between(since, until) if not look.has_two)

    def seconds_full(self, due: float, latest: float, until: float, ledger: Ledger) -> float:
        """Return how long a run that was due between `due` and `latest` may have waited for a free slot until `until`.

        See `longest_full`.
        """
        return longest_full(self._looks_between(due, until), ledger.between(due, until), latest)

    def _looks_between(self, since: float, until: float) -> list[Look]:
        later = takewhile(lambda look: look.at >= since, reversed(self._looks))
        return [look for look in later if look.at <= until][::-1]

    def kill(self, worker: Worker, successor: Kind) -> float:
        """Kill -9 the worker and its pool processes, as a machine that loses power would; return when."""
        with self._changing:
            worker.signal_all(signal.SIGKILL)
            struck = time.monotonic()
            self._replace(worker, successor)
        return struck

    def terminate(self, worker: Worker, successor: Kind) -> float:
        """Begin a warm shutdown; return when."""
        with self._changing:
            os.kill(worker.process.pid, signal.SIGTERM)
            worker.leaving_since = time.monotonic()
            self._leaving.append(worker)
            self._replace(worker, successor)
            return worker.leaving_since

    def freeze(self, worker: Worker, seconds: float) -> float:
        """Stop the worker and its pool processes for `seconds`; return when they were stopped."""
        with self._changing:
            worker.frozen = True
            worker.signal_all(signal.SIGSTOP)
            struck = time.monotonic()
        time.sleep(seconds)
        with self._changing:
            worker.signal_all(signal.SIGCONT)
            worker.frozen = False
        return struck

    def close(self) -> None:
        self._closed.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()
        for worker in [*self._places, *self._leaving]:
            if worker.process.poll() is None:
                worker.signal_all(signal.SIGKILL)
            worker.process.stop()

    def _replace(self, worker: Worker, successor: Kind) -> None:
        place = self._places.index(worker)
        self._places[place] = self._start(successor, place)

    def _start(self, kind: Kind, place: int) -> Worker:
        self._number += 1
        name = f"w{self._number}"
        environment = {
            **self.environment,
            **(self.proxied if place == PROXIED else {}),
            "TORTURE_BOOKS": str(self.books),
            "TORTURE_WORKER": name,
            "TORTURE_BATCH_SIZE": str(kind.batch_size),
            "TASKBRIDGE_TAIL_LISTENS": str(self._number % 2),
        }
        if kind.clock_seconds is not None:
            environment["TORTURE_CLOCK"] = str(kind.clock_seconds)
        if kind.is_async:
            environment["TORTURE_ASYNC"] = "1"
        if kind.hard_limit is not None:
            environment["TORTURE_HARD_LIMIT"] = str(kind.hard_limit)
        log = self.books / f"{name}.log"
        with open_log(log) as output:
            process = Guarded(
                worker_command("-n", f"{name}@torture", "--loglevel", "INFO", *kind.options),
                stop=((signal.SIGTERM, 5.0),),
                output=output,
                environment=environment,
                directory=ROOT,
            )
        return Worker(name, kind, log, process)

    def _supervise(self) -> None:
        looked = time.monotonic()
        while not self._closed.wait(LOOKS_EVERY):
            with self._changing:
                # On a busy machine much longer than it was to be.
                before, looked = looked, time.monotonic()
                slots = {worker.name: worker.kind.slots for worker in self.ready()}
                self._looks.append(Look(looked, looked - before, slots))
                for worker in [one for one in self._places if one.process.poll() is not None]:
                    if self.up.is_set():
                        notes = self.self_exits if worker.was_ready else self.refusals
                        text = f"{worker.name} ({worker.kind.pool}): {worker.last_words()}"
                        notes.append(text)
                        if worker.was_ready and worker.has_died:
                            self.died.append(text)
                        self._replace(worker, worker.kind)
                for worker in [*self._leaving]:
                    self._see_off(worker)

    def _see_off(self, worker: Worker) -> None:
        assert worker.leaving_since is not None
        if worker.process.poll() is not None:
            self._leaving.remove(worker)
        elif time.monotonic() > worker.leaving_since + ENDS_WITHIN:
            self._write_stacks(worker)
            self.hung.append(f"{worker.name} ({worker.kind.pool}) did not end within {ENDS_WITHIN:g} s of SIGTERM")
            worker.signal_all(signal.SIGKILL)
            self._leaving.remove(worker)

    def _write_stacks(self, worker: Worker) -> None:
        """Write where each of its processes stands into the books, by py-spy."""
        program = Path(sys.executable).with_name("py-spy")
        with suppress(OSError, psutil.Error), (self.books / f"{worker.name}.stacks").open("wb") as output:
            own = psutil.Process(worker.process.pid)
            for one in (own, *own.children(recursive=True)):
                subprocess.run([program, "dump", "--pid", str(one.pid)], stdout=output, stderr=output, check=False)
