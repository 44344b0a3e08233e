"""What a record can make of its handler: `{"act": name, "variant": number}` in its document asks for it.

Most come at every try, so the record that asks for one must end in quarantine.
"""

from __future__ import annotations

import asyncio
import ctypes
import email.utils
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from celery.exceptions import SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate
from sqlalchemy.exc import DBAPIError

from taskbridge import Batch, Record, RetryAfter
from verification.torture.pristine import LEFT_BEHIND
from verification.torture.producer import Expected

__all__ = ["ACTS", "LONGEST_WAIT", "MAX_ATTEMPTS", "SOFT_TIME_LIMIT", "UNDECODABLE", "Leave"]

RUNNER_TTL: Final = float(os.environ.get("TASKBRIDGE_RUNNER_TTL", "5"))
MAX_ATTEMPTS: Final = 2
SOFT_TIME_LIMIT: Final = 3.0
LONG_TEXT: Final = 10_000_000
LONGEST_WAIT: Final = 2.0
"""Seconds that `asks_to_wait` asks for at the most; a date has no parts of a second."""

UNDECODABLE: Final = (
    "[" * 5_000 + "]" * 5_000,
    "1e5000",
    "9" * 5_000,
)
"""JSON that Postgres stores and that Python cannot read as it is."""


class Leave(Exception):
    """The handler returns at once, with what it did so far."""


@dataclass(frozen=True)
class Act:
    """`variants` are drawn from; each is called with the batch and the record. One that `lasts` comes at every try."""

    variants: tuple[Callable[[Batch, Record], Any], ...]
    lasts: bool = True
    end: Expected = Expected.QUARANTINED


def _raises(kind: type[BaseException], *arguments: object) -> Callable[[Batch, Record], None]:
    def act(_: Batch, __: Record) -> None:
        raise kind(*arguments)

    return act


def _rejects(reason: str) -> Callable[[Batch, Record], None]:
    return lambda batch, record: batch.reject(record, reason)


def _signals(number: signal.Signals) -> Callable[[Batch, Record], None]:
    return lambda _, __: os.kill(os.getpid(), number)


def _segfaults(_: Batch, __: Record) -> None:
    ctypes.string_at(0)


def _holds_the_interpreter(_: Batch, __: Record) -> None:
    """Call C that keeps the GIL for longer than the runner TTL: no thread of this process does anything meanwhile."""
    until = time.monotonic() + RUNNER_TTL + 1.0
    while (left := until - time.monotonic()) > 0:  # a signal ends the call, but not the computation that it stands for
        ctypes.PyDLL(None).usleep(round(left * 1e6))


def _terminates_itself(_: Batch, __: Record) -> None:
    """Tell this process to end, and fail where it does not: a worker that shuts down waits for its calls."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    raise ValueError("asked to end, and still here")


def _outlasts_hard_limit(_: Batch, __: Record) -> None:
    """Outlast Celery's hard time limit, where this worker has one; elsewhere just fail."""
    limit = float(os.environ.get("TORTURE_HARD_LIMIT", "0"))
    until = time.monotonic() + 4 * limit
    while time.monotonic() < until:
        with suppress(SoftTimeLimitExceeded):
            time.sleep(0.1)
    raise ValueError("not ended by a hard time limit")


_KEPT: list[object] = []
"""What handlers keep references to, so that it is never closed."""


def _keeps_stream(batch: Batch, _: Record) -> None:
    """Return while rows of a stream are still to come, and keep it."""
    driver: Any = batch.connection.connection.driver_connection
    stream = driver.cursor().stream("SELECT generate_series(1, 100000)")
    next(stream)
    _KEPT.append(stream)
    raise Leave


def _keeps_copy(batch: Batch, _: Record) -> None:
    """Return in the middle of a COPY, and keep it."""
    driver: Any = batch.connection.connection.driver_connection
    copying = driver.cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT")
    next(iter(copying.__enter__()))
    _KEPT.append(copying)
    raise Leave


def _hangs(batch: Batch, _: Record) -> None:
    """Hang until the soft limit; where no signal can come, in a thread, the handler looks at the time itself."""
    while threading.current_thread() is threading.main_thread() or batch.seconds_left > 0:
        time.sleep(0.05)
    raise SoftTimeLimitExceeded("looked at seconds_left")


def _fails_at_commit(batch: Batch, record: Record) -> None:
    batch.connection.exec_driver_sql("INSERT INTO torture_promises VALUES (%s)", (record.external_id,))


def _swallows(then: Callable[[Batch, Record], Any] | None) -> Callable[[Batch, Record], None]:
    """Swallow an error of the database, which leaves the transaction broken, and return as if nothing had been."""

    def act(batch: Batch, record: Record) -> None:
        try:
            batch.connection.exec_driver_sql("SELECT 1 / 0")
        except DBAPIError:
            if then is not None:
                then(batch, record)
            raise Leave from None

    return act


def _waits(*how: Any, **scope: Any) -> Callable[[Batch, Record], None]:
    def act(_: Batch, __: Record) -> None:
        values = (part() if callable(part) else part for part in how)
        raise RetryAfter(*values, **scope)

    return act


def _a_date() -> str:
    return email.utils.formatdate(time.time() + 1.0, usegmt=True)


ACTS: Final[dict[str, Act]] = {
    "poison": Act((_raises(ValueError, "cannot be handled"),)),
    "kills": Act((_signals(signal.SIGKILL), _segfaults)),
    "exits": Act((_raises(SystemExit, 1), _raises(asyncio.CancelledError), _raises(KeyboardInterrupt))),
    # Where no other worker is free to begin the run that replaces it, it ends in time after all.
    "holds": Act((_holds_the_interpreter,), end=Expected.EITHER),
    "hangs": Act((_hangs,)),
    "outlasts_limit": Act((_outlasts_hard_limit,)),
    "runs_out_of_memory": Act((_raises(MemoryError),)),
    "shuts_down": Act((_raises(WorkerShutdown, "a handler"), _raises(WorkerTerminate, 1), _terminates_itself)),
    "keeps_reference": Act((_keeps_stream, _keeps_copy)),
    "leaves_state": Act(LEFT_BEHIND, end=Expected.DELIVERED),
    "commits_badly": Act((_fails_at_commit,)),
    "swallows": Act((_swallows(None), _swallows(_rejects("swallowed")))),
    "odd_text": Act(
        (
            _raises(ValueError, "\ud83d"),
            _raises(ValueError, "a\0b"),
            _raises(ValueError, "long " * (LONG_TEXT // 5)),
            _rejects("\ud83d"),
            _rejects("a\0b"),
            _rejects("long " * (LONG_TEXT // 5)),
        )
    ),
    "cannot_reach": Act((_raises(TimeoutError, "no answer"), _raises(ConnectionError, "refused"))),
    "asks_to_wait": Act(
        (_waits(0.2), _waits("1"), _waits(_a_date), _waits(0.3, scope="pipeline")),
        lasts=False,
        end=Expected.DELIVERED,
    ),
}
