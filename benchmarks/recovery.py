"""How soon a key's work goes on after the worker that had it is killed, while another worker lives.

SIGKILL hits a worker's process group, its main process and its pool, during the first batch of each key. From then on
every key has an event each second, as it would with traffic. TaskBridge and the others have two workers each, of which
one is killed at the same moment.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import recovery_handlers
from benchmarks.recovery_handlers import PIPELINE, Call, calls
from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.stage import stage, wait_until, worker
from taskbridge.errors import ConfigurationError
from taskbridge.integration.tasks import NOTIFY_TASK
from taskbridge.process.runtime import Runtime
from taskbridge.store import record

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RECOVERY", "Recovered", "recovered"]

OURS: Final = "TaskBridge"
BETWEEN_EVENTS: Final = 1.0
SLACK: Final = 1.0
"""Seconds beyond the runner TTL within which a dead runner is replaced."""
BEATS: Final = 3
"""Heartbeats per runner TTL. The keys begin spread over one of them, so that the crash meets different ones."""


class Recovered(NamedTuple):
    """Seconds from the crash until a key's handler was called again, and until it was with the interrupted record.

    Infinite if it was not. `waiting` is how many records no call since the crash has held.
    """

    next_run: float
    interrupted: float
    waiting: int


def recovered(numbers: Sequence[str], made: Sequence[Call], crashed: float) -> Recovered:
    """Return what became of a key with the records `numbers`, of which the first was interrupted."""
    later = [call for call in made if call.started > crashed]
    held = {number for call in later for number in call.numbers}
    return Recovered(
        min((call.started - crashed for call in later), default=math.inf),
        min((call.started - crashed for call in later if numbers[0] in call.numbers), default=math.inf),
        len(set(numbers) - held),
    )


class Key:
    """One tenant of a subject. `send` writes the record of a number and sends its event."""

    def __init__(self, tenant: str, send: Callable[[str, str], Any]) -> None:
        self.tenant: Final = tenant
        self._send = send
        self._numbers: list[str] = []

    def send(self) -> None:
        """Send an event, with a record."""
        self._numbers.append(str(len(self._numbers)))
        self._send(self.tenant, self._numbers[-1])

    def recovered(self, made: Sequence[Call], crashed: float) -> Recovered:
        """Return what became of it, by all calls that were made."""
        return recovered(self._numbers, [call for call in made if call.tenant == self.tenant], crashed)


def _measure(keys: int, cap: float) -> Report:
    """Kill the workers that run `keys` keys of each subject; wait for `cap` seconds at most."""
    if find_spec("celery_once") is None or find_spec("celery_singleton") is None:
        raise ConfigurationError("celery-once and celery-singleton are measured too: run `make .venv/.ready`")
    from benchmarks import recovery_peers  # noqa: PLC0415 - its packages may be missing

    with stage() as (runtime, directory):
        with runtime.engine.begin() as connection:
            connection.exec_driver_sql(recovery_peers.TABLE)
        peers = recovery_peers.senders(runtime.settings.redis_url)
        sends = {
            OURS: partial(_send, runtime),
            **{name: partial(_publish, runtime, one) for name, one in peers.items()},
        }
        keys_of = {name: [Key(f"{name}-{at}", send) for at in range(keys)] for name, send in sends.items()}
        each = [key for ones in zip(*keys_of.values(), strict=True) for key in ones]
        with _workers(runtime, directory, keys, len(peers)):
            for key in each:
                key.send()
                time.sleep(runtime.settings.runner_ttl / BEATS / len(each))
            wait_until(lambda: len(calls(runtime.redis)) == len(each), "a batch of each key begins", 60)
            groups = {call.group for call in calls(runtime.redis)}
            with _workers(runtime, directory, keys, len(peers)):
                crashed = time.time()
                for group in groups:
                    os.killpg(group, signal.SIGKILL)
                _go_on(each, crashed + cap)
                made = calls(runtime.redis)
    found = {name: [key.recovered(made, crashed) for key in ones] for name, ones in keys_of.items()}
    return _report(found, keys, cap, runtime.settings.runner_ttl + SLACK)


@contextmanager
def _workers(runtime: Runtime, directory: Path, keys: int, peers: int) -> Iterator[None]:
    """Run a worker of TaskBridge and one of the peers, with a slot for each key."""
    ours, theirs = ("--concurrency", str(keys)), ("--concurrency", str(keys * peers))
    with (
        worker(runtime, directory, *ours, pipelines=recovery_handlers.__name__),
        worker(runtime, directory, *theirs, app="benchmarks.recovery_peers"),
    ):
        yield


def _send(runtime: Runtime, tenant: str, number: str) -> None:
    record(runtime.engine, PIPELINE, tenant, number, {"number": number})
    runtime.app.tasks[NOTIFY_TASK].delay(tenant, PIPELINE)


def _publish(runtime: Runtime, publish: Callable[[str, str], Any], tenant: str, number: str) -> None:
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO peer_rows (tenant, number) VALUES (%s, %s)", (tenant, number))
    publish(tenant, number)


def _go_on(keys: Sequence[Key], end: float) -> None:
    """Send an event of every key each second until `end`, and give the last ones a second."""
    due = time.time() + BETWEEN_EVENTS
    while due < end:
        time.sleep(max(0.0, due - time.time()))
        due += BETWEEN_EVENTS
        for key in keys:
            key.send()
    time.sleep(BETWEEN_EVENTS)


def _report(found: Mapping[str, Sequence[Recovered]], keys: int, cap: float, bound: float) -> Report:
    def cells(values: Sequence[float]) -> list[Cell]:
        return [value if value <= cap else f"not within {cap:g} s" for value in (median(values), max(values))]

    rows = [
        [
            name,
            *cells([one.next_run for one in ones]),
            *cells([one.interrupted for one in ones]),
            sum(one.waiting for one in ones) / len(ones),
        ]
        for name, ones in found.items()
    ]
    columns = (
        "",
        "next run of the key, median s",
        "longest s",
        "interrupted record, median s",
        "longest s",
        "records waiting at the end, per key",
    )
    return Report(
        {"keys": keys, "cap": cap},
        [Table("After SIGKILL in mid-batch", columns, rows, NOTE)],
        [
            Target(f"{what}, longest, s; limit: runner TTL + {SLACK:g} s", min(longest, cap), bound)
            for what, longest in (
                ("next run", max(one.next_run for one in found[OURS])),
                ("interrupted record", max(one.interrupted for one in found[OURS])),
            )
        ],
    )


NOTE: Final = (
    "Each time ends when the handler is called. From one second after the crash, each key has an event every second. A "
    "job of celery-once or celery-singleton would take all records of its key. With `acks_late`, a job handles only "
    "its own record. So the next event's job runs at once, but the interrupted job returns only after the visibility "
    "timeout, which is one hour by default."
)

RECOVERY: Final = Benchmark(
    "recovery",
    "The work of a worker that was killed resumes within seconds.",
    "Seconds from SIGKILL until the tenant's next run begins, in the worst case.",
    "Kills a worker while it handles a batch, and measures how soon another worker resumes the work. The baselines "
    "are celery-once, celery-singleton and Celery with `acks_late`, all with their default settings. Each job "
    "belongs to a key. For TaskBridge, the key is the tenant.",
    _measure,
    (
        Option("keys", 3, 1, 16, "Keys of each subject whose worker is killed."),
        # A shorter cap could not tell whether the bound is kept.
        Option("cap", 60.0, 7, 3_600, "Seconds after which nobody waits any more."),
    ),
    {"keys": 1, "cap": 7.0},
)
