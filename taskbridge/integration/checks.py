"""The checks of `taskbridge doctor`: each looks at one thing and says what it found."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

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
from taskbridge.observing.context import Context
from taskbridge.observing.health import nobody_looks, unserved, work
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
from taskbridge.store.queries import query
from taskbridge.store.schema import head

__all__ = ["Finding", "Level", "examine", "worst"]


SKEW_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 5.0
BASE_SECONDS: Final = 300.0
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
    """What a check found; `remedy` is empty where there is nothing to do."""

    level: Level
    check: str
    text: str
    remedy: str = ""


Findings = Iterator[Finding]


def examine(runtime: Runtime) -> list[Finding]:
    """Make all checks; one that needs what another found out of reach is left out."""
    found: list[Finding] = []

    def usable(check: Callable[[Runtime], Findings], name: str) -> bool:
        try:
            with translated_errors():
                found.extend(check(runtime))
        except TaskBridgeError as error:
            found.append(Finding(Level.PROBLEM, name, error.what, error.remedy))
            return False
        except Exception as error:
            # Nothing that the other checks found may be lost.
            text = f"this check failed: {error_line(error)}"
            found.append(Finding(Level.PROBLEM, name, text, "a check that fails so is a bug: report it"))
            return False
        return True

    postgres = usable(_postgres, "Postgres")
    if postgres and usable(_schema, "schema"):
        usable(_cluster, "cluster")
        usable(_adopted, "tables")
    redis = usable(_redis, "Redis")
    if postgres and redis:
        usable(_owner, "gate")
        usable(_clocks, "clocks")
    pipelines = usable(_pipelines, "pipelines")
    broker = usable(_queues, "broker")
    if broker and usable(_workers, "workers") and redis and not _unserved(found):
        usable(_probe, "probe")
    if redis and pipelines:
        usable(_overdue, "deadlines")
    if postgres and redis and pipelines and any(one.check == "cluster" for one in found):
        usable(_journal, "pipelines")
        usable(_work, "work")
        usable(_rounds, "tail")
        if broker:
            usable(_sessions, "sessions")
    return found


def worst(findings: list[Finding]) -> Level:
    """Return the level of the worst finding."""
    return max((one.level for one in findings), key=list(Level).index)


def _postgres(runtime: Runtime) -> Findings:
    for one in ALSO_CHECKED:
        one(runtime.settings)
    check_version(runtime.engine)
    (server,) = fetch(runtime.engine, "server")
    version = server["version"]
    if server["is_standby"]:
        yield Finding(Level.PROBLEM, "Postgres", f"{version} is a standby, which takes no writes", "name the primary")
    else:
        yield Finding(Level.OK, "Postgres", version)
    yield _encoding(server["encoding"])
    yield from _pooler(runtime)


def _encoding(name: str) -> Finding:
    """Say which names and documents the database can hold."""
    if name == "UTF8":
        return Finding(Level.OK, "encoding", "UTF8, which holds every name and document")
    what = {
        "SQL_ASCII": "takes any bytes and checks none, and refuses documents with characters outside of ASCII",
    }.get(name, "refuses names and documents with characters that it lacks, as Chinese ones in LATIN1")
    return Finding(Level.WARNING, "encoding", f"{name} {what}", "move to a database with `ENCODING 'UTF8'`")


def _pooler(runtime: Runtime) -> Findings:
    found = pooler_of(runtime.engine, runtime.settings.postgres_url)
    if found is None:
        return
    prepares = "statements are prepared" if found.prepares else "no statement is prepared"
    text = f"{found.name} in {found.mode} mode: {prepares}, and each transaction sets its own time limits"
    yield Finding(Level.OK, "pooler", text)
    if runtime.settings.tail_listens:
        yield Finding(
            Level.WARNING,
            "pooler",
            "TASKBRIDGE_TAIL_LISTENS has no effect: nobody can LISTEN through a pooler, so workers poll",
            "leave it out, or let TASKBRIDGE_POSTGRES_URL of the workers lead to Postgres itself",
        )


def _schema(runtime: Runtime) -> Findings:
    check_schema(runtime.engine)
    yield Finding(Level.OK, "schema", f"{head()}, the newest")


def _cluster(runtime: Runtime) -> Findings:
    check_cluster(runtime.engine)
    yield Finding(Level.OK, "cluster", "the one whose transaction ids the cursors hold")


def _adopted(runtime: Runtime) -> Findings:
    """Look at the tables that were adopted: whether their changes are recorded, and their rows can be read."""
    others = undeclared_readers(runtime.engine, runtime.pipelines.names())
    for source, wrong in check_adoptions(runtime.engine).items():
        for name in others.get(source, ()):
            yield Finding(
                Level.WARNING,
                "tables",
                f"{source}: the pipeline {name} has read it too, so what a handler writes back into it is not muted",
                f"if {name} is no more, run `taskbridge pipeline remove {name}`; else name what counts "
                "with `taskbridge adopt --columns`",
            )
        for what, remedy, is_recorded in wrong:
            level = Level.WARNING if is_recorded else Level.PROBLEM
            yield Finding(level, "tables", f"{source}: {what}", remedy)
        if not wrong:
            yield Finding(Level.OK, "tables", f"{source}: its changes are recorded, and its rows can be read")


def _redis(runtime: Runtime) -> Findings:
    runtime.gate.check_version()
    try:
        info: dict[str, Any] = runtime.redis.info()
    except NoPermissionError:
        yield Finding(
            Level.WARNING,
            "Redis",
            "INFO is refused to this user, so its version, role and eviction policy are unknown",
            "grant +info, or see for yourself that it is a primary with maxmemory-policy noeviction",
        )
        return
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else info["redis_version"]
    if info.get("cluster_enabled"):
        yield Finding(
            Level.PROBLEM, "Redis", f"{version} is a cluster: it parts a tenant's keys", "use a single server"
        )
    elif info.get("role") != "master":
        yield Finding(Level.PROBLEM, "Redis", f"{version} is a replica, which takes no writes", "name the primary")
    else:
        yield Finding(Level.OK, "Redis", version)
    policy, limit = info.get("maxmemory_policy", "unknown"), info.get("maxmemory", 0)
    if policy == "noeviction":
        yield Finding(Level.OK, "eviction", "noeviction: no key is dropped")
    elif not limit:
        yield Finding(Level.OK, "eviction", f"{policy}, and without a limit of memory no key is dropped")
    else:
        yield Finding(
            Level.WARNING,
            "eviction",
            f"{policy} with {limit:,} bytes: keys of the gate and queues can vanish when memory is full",
            "set maxmemory-policy noeviction",
        )


def _owner(runtime: Runtime) -> Findings:
    """Find that workers of another database use the gate, which raises that; else there is nothing to say."""
    runtime.check_owner()
    return iter(())


def _clocks(runtime: Runtime) -> Findings:
    before = time.time()
    with runtime.engine.connect() as connection:
        postgres = connection.exec_driver_sql(query("clock")).scalar_one().timestamp()
    between = time.time()
    seconds, microseconds = runtime.redis.time()
    after = time.time()
    redis = seconds + microseconds / 1_000_000
    measured = (
        ("Postgres and this machine", postgres - (before + between) / 2, between - before),
        ("Redis and Postgres", (redis - postgres) - (after - before) / 2, after - before),
    )
    for clocks, skew, took in measured:
        # When within the time of the question the answer was made is unknown.
        if abs(skew) - took / 2 > SKEW_SECONDS:
            remedy = "let NTP set the clock of each machine"
            yield Finding(Level.WARNING, "clocks", f"{clocks} are {abs(skew):.1f} s apart", remedy)
        else:
            yield Finding(Level.OK, "clocks", f"{clocks} are {abs(skew):.3f} s apart")


def _pipelines(runtime: Runtime) -> Findings:
    yield Finding(Level.OK, "pipelines", ", ".join(runtime.pipelines.names()))


def _journal(runtime: Runtime) -> Findings:
    """Say that a worker would not start with these variables; workers that run have others."""
    try:
        check_journal(runtime)
    except ConfigurationError as error:
        yield Finding(Level.WARNING, "pipelines", error.what, error.remedy)


def _queues(runtime: Runtime) -> Findings:
    check_serializer(runtime.app)
    with broker_connection(runtime.app, **bounded(runtime.app)) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_SECONDS)
        lengths = [f"{_length(connection, queue):,} in {queue}" for queue in runtime.keys.queues]
    yield Finding(Level.OK, "broker", f"{connection.transport.driver_type}; messages: {', '.join(lengths)}")


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


def _workers(runtime: Runtime) -> Findings:
    answers = ask(runtime.app, "active_queues", seconds=ANSWER_SECONDS)
    served = {one["name"] for queues in answers.values() for one in queues}
    if not served & {*runtime.keys.queues} and (seen := _seen_elsewhere(runtime)):
        yield Finding(
            Level.PROBLEM,
            "workers",
            f"{seen}, but none that serves it answers at {_broker_of(runtime)}",
            "let TASKBRIDGE_BROKER_URL name the broker of the workers' app; if they have just ended, start them",
        )
        return
    if not answers:
        own = installed_beside(runtime.app)
        worker = f"`celery -A {own} worker`" if own else "`celery -A taskbridge worker`, or a worker of your own app"
        yield Finding(
            Level.PROBLEM,
            "workers",
            f"no worker answers within {ANSWER_SECONDS:g} s, so nothing is handled",
            f"start {worker}, or `taskbridge up`",
        )
        return
    for queue in runtime.keys.queues:
        serving = sum(any(one["name"] == queue for one in queues) for queues in answers.values())
        if serving:
            yield Finding(Level.OK, "workers", f"{serving:,} serve {queue}")
        else:
            yield Finding(
                Level.PROBLEM,
                "workers",
                f"none of {len(answers):,} serves {queue}",
                f"name it in -Q: {', '.join(runtime.keys.queues)}",
            )
    ours = [name for name, queues in answers.items() if {one["name"] for one in queues} & {*runtime.keys.queues}]
    # Celery takes an empty list of workers for all.
    if ours:
        yield from _declarations(runtime, ours)
        yield from _time_limits(runtime, ours)
    if ours and str(runtime.app.conf.broker_url).startswith(("redis", "sentinel")):
        yield from _transports(runtime, ours)


def _sessions(runtime: Runtime) -> Findings:
    """Compare what the workers that answer may need with what the role of this process can have."""
    slots = [
        one.get("pool", {}).get("max-concurrency", 0)
        for one in ask(runtime.app, "stats", seconds=ANSWER_SECONDS).values()
    ]
    if not slots:
        return
    need = sum(slots) + OTHER_SESSIONS * len(slots)
    with runtime.engine.connect() as connection:
        limits = connection.exec_driver_sql(query("session_limits")).one()
    limit, whose = min((one, whose) for one, whose in zip(limits, _LIMITS, strict=True) if one is not None)
    what = f"{counted(len(slots), 'worker', 'workers')} may need {need:,} sessions of Postgres at once"
    if need > limit:
        yield Finding(
            Level.WARNING,
            "sessions",
            f"{what}, and {whose} leaves {limit:,} to all of its clients",
            "raise it, or start workers with fewer slots (-c)",
        )
    else:
        yield Finding(Level.OK, "sessions", f"{what}, and {whose} leaves {limit:,} to all of its clients")


def _unserved(found: list[Finding]) -> bool:
    return any(one.check == "workers" and one.level is Level.PROBLEM for one in found)


def _probe(runtime: Runtime) -> Findings:
    """Send a probe through each queue, as runs are sent, and wait until a worker answers."""
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
        took = time.monotonic() - began
        yield Finding(Level.OK, "probe", f"workers answered a probe through each queue within {took:.1f} s")
        return
    untaken = {queue for queue in waiting if (text := texts[queue]) and runtime.gate.withdraw(queue, text)}
    for queue in sorted(waiting):
        name = runtime.keys.queue(queue)
        if _all_busy(runtime, name):
            yield Finding(
                Level.WARNING,
                "probe",
                f"no worker answered a probe through {name} within {PROBE_SECONDS:g} s: all their slots are busy",
                "run `taskbridge doctor` again when one is free; if that is seldom so, start more workers",
            )
        elif queue in untaken:
            yield Finding(
                Level.PROBLEM,
                "probe",
                f"no worker took a probe out of {name} within {PROBE_SECONDS:g} s, though some serve it",
                "let this process and the workers have the same broker_transport_options and variables TASKBRIDGE_*",
            )
        else:
            yield Finding(
                Level.PROBLEM,
                "probe",
                f"no worker answered a probe through {name} in this Redis within {PROBE_SECONDS:g} s",
                "let TASKBRIDGE_REDIS_URL name one database for this process and all workers; "
                "if it does, look at the workers' logs",
            )


def _all_busy(runtime: Runtime, queue: str) -> bool:
    """Whether no worker that serves a queue has a free slot."""
    served, stats, active = (
        ask(runtime.app, command, seconds=ANSWER_SECONDS) for command in ("active_queues", "stats", "active")
    )
    serving = [name for name, queues in served.items() if any(one["name"] == queue for one in queues)]
    return all(
        len(active.get(name, ())) >= stats.get(name, {}).get("pool", {}).get("max-concurrency", 1) for name in serving
    )


def _seen_elsewhere(runtime: Runtime) -> str:
    """Say of which pipeline a worker has just looked for records; "" where there is none."""
    # Other checks tell of what cannot be asked here.
    with suppress(Exception):
        for name, ages in read_ages(runtime.engine, runtime.pipelines.names()).items():
            if not nobody_looks(ages.tail, runtime.settings.tail_interval):
                return f"a worker has looked for records of {name} {ages.tail:,.0f} s ago"
    return ""


def _broker_of(runtime: Runtime) -> str:
    """Return the URL of the broker, without its password."""
    with broker_connection(runtime.app) as connection:
        return str(connection.as_uri())


def _declarations(runtime: Runtime, workers: list[str]) -> Findings:
    """Say which workers take runs of pipelines that they do not declare."""
    for worker, declared in sorted(ask(runtime.app, DECLARED_COMMAND, workers, seconds=ANSWER_SECONDS).items()):
        lacks = sorted(set(runtime.pipelines.names()) - set(declared)) if isinstance(declared, list) else []
        if lacks:
            yield Finding(
                Level.WARNING,
                "workers",
                f"{worker} does not declare {', '.join(lacks)}, and may take a run of it, which then waits",
                "name the same modules in TASKBRIDGE_PIPELINES of every worker",
            )


def _time_limits(runtime: Runtime, workers: list[str]) -> Findings:
    """Say which workers kill a run before its time budget is spent. A pool without time limits reports none."""
    pipelines = [runtime.pipelines[name] for name in runtime.pipelines.names()]
    longest = runtime.settings.run_budget + max((one.soft_time_limit or 0 for one in pipelines), default=0)
    for worker, stats in sorted(ask(runtime.app, "stats", workers, seconds=ANSWER_SECONDS).items()):
        _, hard = stats.get("pool", {}).get("timeouts") or (0, 0)
        if hard and hard <= longest:
            yield Finding(
                Level.WARNING,
                "workers",
                f"{worker} kills the process of a run that takes {hard:g} s, while a run may take {longest:g} s; each "
                "kill counts as a failed attempt of the records in hand",
                "set task_time_limit (or --time-limit) to more than TASKBRIDGE_RUN_BUDGET plus the longest "
                "soft_time_limit of a pipeline",
            )


def _transports(runtime: Runtime, workers: list[str]) -> Findings:
    """Say which workers keep a transport that their app or its broker's URL has chosen, and which have no time-out."""
    for worker, conf in sorted(ask(runtime.app, "conf", workers, seconds=ANSWER_SECONDS).items()):
        transport = conf.get("broker_transport")
        if runtime.publishes_in_gate and transport not in TRANSPORTS:
            yield Finding(
                Level.OK,
                "transport",
                f"{worker} keeps {transport or 'that of kombu'}: each run's message is written to `unacked`",
            )
        if not (conf.get("broker_transport_options") or {}).get("socket_timeout"):
            yield Finding(
                Level.WARNING,
                "transport",
                f"the app of {worker} sets no socket_timeout for its broker: a process that publishes hangs when a "
                "connection is lost without notice",
                f"add to the app's broker_transport_options: {BOUNDED_CONNECTIONS}",
            )


def _rounds(runtime: Runtime) -> Findings:
    """Look for pipelines whose records nobody looks for."""
    settings, sound = runtime.settings, True
    longest = max(BASE_SECONDS, INTERVALS * settings.base_interval)
    for name, ages in read_ages(runtime.engine, runtime.pipelines.names()).items():
        found = next(unserved(ages.tail, settings.tail_interval, 0.0), None)
        if found is not None:
            sound = False
            level = Level.PROBLEM if found.grave else Level.WARNING
            yield Finding(level, "tail", f"{name}: {found.sentence}", found.remedy)
        elif ages.base > longest:
            sound = False
            since = "ever since it was declared" if math.isinf(ages.base) else f"for {ages.base:,.0f} s"
            yield Finding(
                Level.WARNING,
                "tail",
                f"{name}: nobody looks for what Redis may have forgotten, {since}",
                "start a worker that declares the pipeline; if one runs, its log says what keeps it",
            )
    if sound:
        yield Finding(Level.OK, "tail", "new records of every pipeline are looked for")


def _work(runtime: Runtime) -> Findings:
    """Look for work that does not go on."""
    sound = True
    read = {runtime.pipelines[name].source for name in runtime.pipelines.names()}
    for source in unread_sources(runtime.engine, read):
        sound = False
        yield Finding(
            Level.WARNING,
            "work",
            f"{source}: no pipeline reads this source, so its records lie there",
            "declare a pipeline with this source; if the name was mistyped, write them under the right one",
        )
    for one in work(Context.of(runtime)):
        sound = False
        yield Finding(Level.PROBLEM if one.grave else Level.WARNING, "work", one.sentence, one.remedy)
    if sound:
        yield Finding(
            Level.OK,
            "work",
            "no circuit is open, no tenant fails, nothing is in quarantine and no message is unmatched",
        )


def _overdue(runtime: Runtime) -> Findings:
    """Look for deadlines that nobody acts on."""
    sound = True
    for name, survey in runtime.gate.survey(runtime.pipelines.names(), 1).items():
        for one in unserved(0.0, runtime.settings.tail_interval, survey.overdue_seconds):
            sound = False
            level = Level.PROBLEM if one.grave else Level.WARNING
            yield Finding(level, "deadlines", f"{name}: {one.sentence}", one.remedy)
    if sound:
        yield Finding(Level.OK, "deadlines", "no runner is overdue")
