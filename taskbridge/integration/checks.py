"""The checks of `taskbridge doctor`: each asks one question, and says what it found and what to do about it."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from kombu.exceptions import ChannelError
from redis.exceptions import NoPermissionError

from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import counted, error_line
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.gate import Queue
from taskbridge.gate.message import check_serializer
from taskbridge.integration.installation import check_journal, installed_beside
from taskbridge.integration.remote import ask
from taskbridge.integration.transport import BOUNDED_CONNECTIONS, BROKER_SECONDS, DECLARED_COMMAND, TRANSPORTS, bounded
from taskbridge.observe.context import Context
from taskbridge.observe.health import health, nobody_looks
from taskbridge.process.broker import broker_connection
from taskbridge.process.light_runtime import ALSO_CHECKED
from taskbridge.process.runtime import Runtime
from taskbridge.store import (
    check_adoptions,
    check_cluster,
    check_schema,
    check_version,
    read_ages,
    undeclared_readers,
    unread_sources,
)
from taskbridge.store.db import fetch, pooler_of

__all__ = ["Finding", "Level", "examine", "worst"]


SKEW_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 5.0
RECONCILER_SECONDS: Final = 300.0
"""A base is stored after each page, and rests for half a minute at the most; a page may wait for its time-outs."""
INTERVALS: Final = 10
OTHER_SESSIONS: Final = 4
"""Sessions that a worker may need besides one for each slot: to look for records, and to listen."""
_LIMITS: Final = ("max_connections", "the CONNECTION LIMIT of the role", "the CONNECTION LIMIT of the database")
"""What limits sessions, in the order of `session_limits`."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; `remedy` is empty if there is nothing to do."""

    level: Level
    text: str
    remedy: str = ""
    check: str = ""


def _warning(text: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, text, remedy)


def _problem(text: str, remedy: str) -> Finding:
    return Finding(Level.PROBLEM, text, remedy)


class _Examined:
    """The deployment that is examined. What several checks need is asked for once."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def queues(self) -> tuple[str, ...]:
        """Our queues."""
        return (*self.runtime.keys.queues,)

    def ask(self, command: str) -> dict[str, Any]:
        """Ask the workers that serve our queues. Celery would take an empty list of workers for all."""
        return ask(self.runtime.app, command, self.ours, seconds=ANSWER_SECONDS) if self.ours else {}

    @cached_property
    def served(self) -> dict[str, set[str]]:
        """The queues of each worker that answers."""
        answers = ask(self.runtime.app, "active_queues", seconds=ANSWER_SECONDS)
        return {worker: {one["name"] for one in queues} for worker, queues in answers.items()}

    @cached_property
    def ours(self) -> list[str]:
        """The workers that serve our queues."""
        return sorted(worker for worker, queues in self.served.items() if queues & {*self.queues})

    @cached_property
    def pools(self) -> dict[str, Any]:
        """What each of our workers says of its pool."""
        return {worker: stats.get("pool", {}) for worker, stats in self.ask("stats").items()}

    def row(self, name: str) -> Any:
        """Return the row that a named query finds, with the names of its columns."""
        (found,) = fetch(self.runtime.engine, name)
        return found

    @cached_property
    def redis_info(self) -> dict[str, Any] | None:
        """What Redis says of itself; None: this user may not ask."""
        try:
            info: dict[str, Any] = self.runtime.redis.info()
        except NoPermissionError:
            return None
        return info


Findings = Iterator[Finding]


class Check(NamedTuple):
    """A question, and what is said if nothing was found. It is asked if the checks that it needs found no problem."""

    name: str
    question: Callable[[_Examined], Findings | None]
    needs: tuple[str, ...] = ()
    sound: str = ""


def examine(runtime: Runtime) -> list[Finding]:
    """Make all checks. One that needs what another found out of order is left out."""
    examined, found, sound = _Examined(runtime), list[Finding](), set[str]()
    for check in CHECKS:
        if not sound.issuperset(check.needs):
            continue
        findings = list[Finding]()
        try:
            with translated_errors():
                findings.extend(check.question(examined) or ())
        except TaskBridgeError as error:
            findings.append(_problem(error.what, error.remedy))
        except Exception as error:
            # Nothing that the other checks found may be lost.
            remedy = "a check that fails so is a bug: report it"
            findings.append(_problem(f"this check failed: {error_line(error)}", remedy))
        if not any(one.level is Level.PROBLEM for one in findings):
            sound.add(check.name)
        if not findings and check.sound:
            findings.append(Finding(Level.OK, check.sound))
        found += [replace(one, check=check.name) for one in findings]
    return found


def worst(findings: list[Finding]) -> Level:
    """Return the level of the worst finding."""
    return max((one.level for one in findings), key=list(Level).index)


def _postgres(examined: _Examined) -> Findings:
    for one in ALSO_CHECKED:
        one(examined.runtime.settings)
    check_version(examined.runtime.engine)
    server = examined.row("server")
    if server["is_standby"]:
        yield _problem(f"{server['version']} is a standby, which takes no writes", "name the primary")
    else:
        yield Finding(Level.OK, str(server["version"]))


def _encoding(examined: _Examined) -> Findings:
    name = examined.row("server")["encoding"]
    remedy = "move to a database with `ENCODING 'UTF8'`"
    if name == "SQL_ASCII":
        yield _warning(f"{name} checks no text, and refuses documents with characters outside of ASCII", remedy)
    elif name != "UTF8":
        yield _warning(f"{name} refuses names and documents with characters that it lacks", remedy)


def _pooler(examined: _Examined) -> Findings:
    settings = examined.runtime.settings
    found = pooler_of(examined.runtime.engine, settings.postgres_url)
    if found is None:
        return
    prepares = "statements are prepared" if found.prepares else "no statement is prepared"
    yield Finding(
        Level.OK, f"{found.name} in {found.mode} mode: {prepares}, and each transaction sets its own time limits"
    )
    if settings.tail_listens:
        yield _warning(
            "TASKBRIDGE_TAIL_LISTENS has no effect: nobody can LISTEN through a pooler, so workers poll",
            "leave it out, or let TASKBRIDGE_POSTGRES_URL of the workers lead to Postgres itself",
        )


def _tables(examined: _Examined) -> Findings:
    """Say whether the changes of adopted tables are recorded, and their rows can be read."""
    engine = examined.runtime.engine
    others = undeclared_readers(engine, examined.runtime.pipelines.names())
    for source, wrong in check_adoptions(engine).items():
        for name in others.get(source, ()):
            yield _warning(
                f"{source}: the pipeline {name} has read it too, so what a handler writes back into it is not muted",
                f"if {name} is no more, run `taskbridge pipeline remove {name}`; else name what counts "
                "with `taskbridge adopt --columns`",
            )
        for what, remedy, is_recorded in wrong:
            yield (_warning if is_recorded else _problem)(f"{source}: {what}", remedy)
        if not wrong:
            yield Finding(Level.OK, f"{source}: its changes are recorded, and its rows can be read")


def _redis(examined: _Examined) -> Findings:
    examined.runtime.gate.check_version()
    info = examined.redis_info
    if info is None:
        yield _warning(
            "INFO is refused to this user, so its version, role and eviction policy are unknown",
            "grant +info, or see for yourself that it is a primary with maxmemory-policy noeviction",
        )
        return
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else info["redis_version"]
    if info.get("cluster_enabled"):
        yield _problem(f"{version} is a cluster: it parts a tenant's keys", "use a single server")
    elif info.get("role") != "master":
        yield _problem(f"{version} is a replica, which takes no writes", "name the primary")
    elif info.get("maxmemory") and info.get("used_memory", 0) >= info["maxmemory"]:
        yield _problem(f"{version} is out of memory, so it refuses writes", "raise maxmemory, or delete other keys")
    elif "err" in (info.get("aof_last_write_status"), info.get("rdb_last_bgsave_status")):
        yield _problem(
            f"{version} could not write its data to disk, and may refuse writes", "its log says why; free the disk"
        )
    else:
        yield Finding(Level.OK, str(version))


def _eviction(examined: _Examined) -> Findings:
    info = examined.redis_info
    if info is None:
        return
    policy, limit = info.get("maxmemory_policy", "unknown"), info.get("maxmemory", 0)
    if policy != "noeviction" and limit:
        yield _warning(
            f"{policy} with {limit:,} bytes: keys of the gate and queues can vanish when memory is full",
            "set maxmemory-policy noeviction",
        )


def _clocks(examined: _Examined) -> Findings:
    before = time.time()
    postgres = examined.row("clock")["clock_timestamp"].timestamp()
    between = time.time()
    seconds, microseconds = examined.runtime.redis.time()
    after = time.time()
    redis = seconds + microseconds / 1_000_000
    measured = (
        ("Postgres and this machine", float(postgres) - (before + between) / 2, between - before),
        ("Redis and Postgres", (redis - float(postgres)) - (after - before) / 2, after - before),
    )
    for clocks, skew, took in measured:
        # When within the time of the question the answer was made is unknown.
        if abs(skew) - took / 2 > SKEW_SECONDS:
            yield _warning(f"{clocks} are {abs(skew):.1f} s apart", "let NTP set the clock of each machine")


def _pipelines(examined: _Examined) -> Findings:
    yield Finding(Level.OK, ", ".join(examined.runtime.pipelines.names()))


def _journal(examined: _Examined) -> Findings:
    """Say that a worker would not start with these variables; workers that run have others."""
    try:
        check_journal(examined.runtime)
    except ConfigurationError as error:
        yield _warning(error.what, error.remedy)


def _broker(examined: _Examined) -> Findings:
    app = examined.runtime.app
    check_serializer(app)
    with broker_connection(app, **bounded(app)) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_SECONDS)
        lengths = [f"{_length(connection, queue):,} in {queue}" for queue in examined.queues]
    yield Finding(Level.OK, f"{connection.transport.driver_type}; messages: {', '.join(lengths)}")


def _length(connection: Any, queue: str) -> int:
    """Return how many messages wait; an empty queue of Redis is one that does not exist."""
    channel = connection.channel()
    try:
        length: int = channel.queue_declare(queue, passive=True).message_count
    except ChannelError:
        return 0
    finally:
        channel.close()
    return length


def _workers(examined: _Examined) -> Findings:
    runtime, queues = examined.runtime, ", ".join(examined.queues)
    if not runtime.app.conf.worker_enable_remote_control:
        yield _warning(
            "the app's worker_enable_remote_control is off, so its workers cannot be asked what they serve",
            f"see in their logs that they serve {queues}",
        )
        return
    if not examined.ours and (seen := _seen_elsewhere(examined)):
        yield _problem(
            f"{seen}, but none that serves it answers at {_broker_of(runtime)}",
            "if the workers have an app of your own, name its module as `celery` does: `taskbridge doctor -A MODULE`; "
            "else let TASKBRIDGE_BROKER_URL name the broker of the workers; if they have just ended, start them",
        )
    elif not examined.served:
        own = installed_beside(runtime.app)
        worker = f"`celery -A {own} worker`" if own else "`celery -A taskbridge worker`, or a worker of your own app"
        yield _problem(
            f"no worker answers within {ANSWER_SECONDS:g} s, so nothing is handled",
            f"start {worker}, or `taskbridge up`",
        )
    else:
        for queue in examined.queues:
            if serving := sum(queue in names for names in examined.served.values()):
                yield Finding(Level.OK, f"{serving:,} serve {queue}")
            else:
                yield _problem(f"none of {len(examined.served):,} serves {queue}", f"name it in -Q: {queues}")
        yield from _declarations(examined)
        yield from _time_limits(examined)


def _seen_elsewhere(examined: _Examined) -> str:
    """Say of which pipeline a worker has just looked for records; "" if there is none."""
    # Other checks report what cannot be asked here.
    with suppress(Exception):
        for name, ages in read_ages(examined.runtime.engine, examined.runtime.pipelines.names()).items():
            if not nobody_looks(ages.poller, examined.runtime.settings.tail_interval):
                return f"a worker has looked for records of {name} {ages.poller:,.0f} s ago"
    return ""


def _broker_of(runtime: Runtime) -> str:
    """Return the URL of the broker, without its password."""
    with broker_connection(runtime.app) as connection:
        return str(connection.as_uri())


def _declarations(examined: _Examined) -> Findings:
    """Say which workers take runs of pipelines that they do not declare."""
    for worker, declared in sorted(examined.ask(DECLARED_COMMAND).items()):
        lacks = sorted({*examined.runtime.pipelines.names()} - {*declared}) if isinstance(declared, list) else []
        if lacks:
            yield _warning(
                f"{worker} does not declare {', '.join(lacks)}, and may take a run of it, which then waits",
                "name the same modules in TASKBRIDGE_PIPELINES of every worker",
            )


def _time_limits(examined: _Examined) -> Findings:
    """Say which workers kill a run before its time budget is spent. A pool without time limits reports none."""
    runtime = examined.runtime
    pipelines = [runtime.pipelines[name] for name in runtime.pipelines.names()]
    longest = runtime.settings.run_budget + max((one.soft_time_limit or 0 for one in pipelines), default=0)
    for worker, pool in sorted(examined.pools.items()):
        _, hard = pool.get("timeouts") or (0, 0)
        if hard and hard <= longest:
            yield _warning(
                f"{worker} kills the process of a run that takes {hard:g} s, while a run may take {longest:g} s; each "
                "kill counts as a failed attempt of the records in hand",
                "set task_time_limit (or --time-limit) to more than TASKBRIDGE_RUN_BUDGET plus the longest "
                "soft_time_limit of a pipeline",
            )


def _transport(examined: _Examined) -> Findings:
    """Say which workers keep a transport that their app or its broker's URL has chosen, and which have no time-out."""
    runtime = examined.runtime
    if not str(runtime.app.conf.broker_url).startswith(("redis", "sentinel")):
        return
    for worker, conf in sorted(examined.ask("conf").items()):
        transport = conf.get("broker_transport")
        if runtime.publishes_in_gate and transport not in TRANSPORTS:
            yield Finding(
                Level.OK, f"{worker} keeps {transport or 'that of kombu'}: each run's message is written to `unacked`"
            )
        if not (conf.get("broker_transport_options") or {}).get("socket_timeout"):
            yield _warning(
                f"the app of {worker} sets no socket_timeout for its broker: a process that publishes hangs when a "
                "connection is lost without notice",
                f"add to the app's broker_transport_options: {BOUNDED_CONNECTIONS}",
            )


def _probe(examined: _Examined) -> Findings:
    """Send a probe through each queue, as runs are sent, and wait until a worker answers."""
    runtime = examined.runtime
    if runtime.eager:
        return
    began, runtime.unpublished = time.monotonic(), None
    probes = {queue: secrets.token_hex(8) for queue in Queue}
    texts = {queue: runtime.gate.probe(queue, token) for queue, token in probes.items()}
    if runtime.unpublished is not None:
        raise runtime.unpublished
    waiting = set(Queue)
    while waiting and time.monotonic() - began < PROBE_SECONDS:
        waiting = {queue for queue in waiting if runtime.gate.answered(probes[queue]) is None}
        time.sleep(0.02 if waiting else 0)
    if not waiting:
        yield Finding(Level.OK, f"workers answered a probe through each queue within {time.monotonic() - began:.1f} s")
    untaken = {queue for queue in waiting if (text := texts[queue]) and runtime.gate.withdraw(queue, text)}
    for queue in sorted(waiting):
        yield _unanswered(examined, runtime.keys.queue(queue), is_taken=queue not in untaken)


def _unanswered(examined: _Examined, queue: str, *, is_taken: bool) -> Finding:
    within = f"{queue} within {PROBE_SECONDS:g} s"
    if examined.ours and _all_busy(examined, queue):
        return _warning(
            f"no worker answered a probe through {within}: all their slots are busy",
            "run `taskbridge doctor` again when one is free; if that is seldom so, start more workers",
        )
    if is_taken:
        return _problem(
            f"no worker answered a probe through {queue} in this Redis within {PROBE_SECONDS:g} s",
            "let TASKBRIDGE_REDIS_URL name one database for this process and all workers; if it does, look at the "
            "workers' logs",
        )
    return _problem(
        f"no worker took a probe out of {within}, though some serve it",
        "let this process and the workers have the same broker_transport_options (`taskbridge doctor -A MODULE` has "
        "those of your app) and variables TASKBRIDGE_*",
    )


def _all_busy(examined: _Examined, queue: str) -> bool:
    """Whether no worker that serves a queue has a free slot."""
    active = examined.ask("active")
    return all(
        len(active.get(worker, ())) >= examined.pools.get(worker, {}).get("max-concurrency", 1)
        for worker in examined.ours
        if queue in examined.served[worker]
    )


def _work(examined: _Examined) -> Findings:
    """Look for work that does not go on."""
    runtime = examined.runtime
    read = {runtime.pipelines[name].source for name in runtime.pipelines.names()}
    for source in unread_sources(runtime.engine, read):
        yield _warning(
            f"{source}: no pipeline reads this source, so its records lie there",
            "declare a pipeline with this source; if the name was mistyped, write them under the right one",
        )
    longest = max(RECONCILER_SECONDS, INTERVALS * runtime.settings.base_interval)
    for name, ages in read_ages(runtime.engine, runtime.pipelines.names()).items():
        if ages.reconciler > longest and not nobody_looks(ages.poller, runtime.settings.tail_interval):
            since = "ever since it was declared" if math.isinf(ages.reconciler) else f"for {ages.reconciler:,.0f} s"
            yield _warning(
                f"{name}: nobody looks for what Redis may have forgotten, {since}",
                "start a worker that declares the pipeline; if one runs, its log says what keeps it",
            )
    for one in health(Context.of(runtime)).findings:
        yield (_problem if one.grave else _warning)(one.sentence, one.remedy)


def _sessions(examined: _Examined) -> Findings:
    """Compare what the workers that answer may need with what the role of this process can have."""
    slots = [pool.get("max-concurrency", 0) for pool in examined.pools.values()]
    if not slots:
        return
    need = sum(slots) + OTHER_SESSIONS * len(slots)
    limits = examined.row("session_limits").values()
    limit, whose = min((one, whose) for one, whose in zip(limits, _LIMITS, strict=True) if one is not None)
    workers = counted(len(slots), "worker")
    text = (
        f"{workers} may need {need:,} sessions of Postgres at once, and {whose} leaves {limit:,} to all of its clients"
    )
    if need > limit:
        yield _warning(text, "raise it, or start workers with fewer slots (-c)")
    else:
        yield Finding(Level.OK, text)


CHECKS: Final = (
    Check("Postgres", _postgres),
    Check("encoding", _encoding, ("Postgres",), "UTF8, which holds every name and document"),
    Check("pooler", _pooler, ("Postgres",)),
    Check("schema", lambda examined: check_schema(examined.runtime.engine), ("Postgres",), "that of this version"),
    Check(
        "cluster",
        lambda examined: check_cluster(examined.runtime.engine),
        ("schema",),
        "the one whose transaction ids the cursors hold",
    ),
    Check("tables", _tables, ("schema",)),
    Check("Redis", _redis),
    Check("eviction", _eviction, ("Redis",), "no key is dropped"),
    Check("gate", lambda examined: examined.runtime.check_owner(), ("Postgres", "Redis")),
    Check("clocks", _clocks, ("Postgres", "Redis"), f"they agree within {SKEW_SECONDS:g} s"),
    Check("pipelines", _pipelines),
    Check("journal", _journal, ("cluster", "pipelines")),
    Check("broker", _broker),
    Check("workers", _workers, ("broker",)),
    Check("transport", _transport, ("broker",)),
    Check("probe", _probe, ("workers", "Redis")),
    Check(
        "work",
        _work,
        ("cluster", "Redis", "pipelines"),
        "records are looked for, no run is overdue, no circuit is open, no tenant fails, no record is in quarantine "
        "or unmatched",
    ),
    Check("sessions", _sessions, ("cluster", "broker")),
)
"""In the order in which they are made and shown."""
