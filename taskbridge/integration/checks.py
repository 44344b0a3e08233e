"""The checks of `taskbridge doctor`. Each answers one question, with a remedy for each finding."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple

from kombu.exceptions import ChannelError, ContentDisallowed
from redis.exceptions import NoPermissionError

from taskbridge.common.sentinel import SentinelAddress
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import counted, error_line
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.gate import Queue
from taskbridge.gate.message import check_serializer
from taskbridge.integration.installation import check_journal
from taskbridge.integration.transport import (
    BOUNDED_CONNECTIONS,
    BROKER_SECONDS,
    DECLARED_COMMAND,
    REDIS_SCHEMES,
    TRANSPORTS,
    bounded,
    scheme_of_broker,
)
from taskbridge.observe.context import Context
from taskbridge.observe.health import health, nobody_looks
from taskbridge.process.connections import broker_connection
from taskbridge.process.runtime import ALSO_CHECKED, Runtime
from taskbridge.settings import redis_variable
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
"""The reconciler stores its position after each page, and rests for at most half a minute between passes."""
INTERVALS: Final = 10
OTHER_SESSIONS: Final = 4
"""Sessions that a worker may need in addition to one per slot: to poll for records, and to listen."""
_LIMITS: Final = ("max_connections", "the CONNECTION LIMIT of the role", "the CONNECTION LIMIT of the database")
"""What can limit the number of sessions, in the order of the query `session_limits`."""


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
    """The deployment under examination. What several checks need is fetched once."""

    def __init__(self, runtime: Runtime, sound: Iterable[str] = ()) -> None:
        self.runtime = runtime
        self.sound = {*sound}
        """The checks that have found no problem."""
        self.others: list[_Examined] = []
        """The same deployment with each of the other Redis servers."""

    @cached_property
    def needs_workers(self) -> bool:
        """Whether there are, or may be, pipelines on this Redis."""
        try:
            return bool(self.runtime.names())
        except TaskBridgeError:
            # Reported by the check of the pipelines.
            return True

    def ask(self, command: str) -> dict[str, Any]:
        """Return the replies of the workers that serve our queues to a remote control command."""
        # Celery takes an empty list of workers for all workers.
        return self._broadcast(command, self.ours) if self.ours else {}

    def _broadcast(self, command: str, workers: list[str] | None = None) -> dict[str, Any]:
        control: Any = self.runtime.app.control
        options: dict[str, Any] = {"destination": workers, "reply": True, "timeout": ANSWER_SECONDS}
        try:
            if broker := self.runtime.broker:
                # Its own pool of producers would publish to the app's broker.
                control = copy(control)
                control.mailbox = copy(control.mailbox)
                control.mailbox.producer_pool = None
                with broker_connection(self.runtime.app, **broker) as connection:
                    replies = control.broadcast(command, connection=connection, **options)
            else:
                replies = control.broadcast(command, **options)
        except ContentDisallowed:
            raise ConfigurationError(
                "workers reply with a serializer that this app does not accept",
                "name the module of your app, as in `celery -A`: `taskbridge doctor -A MODULE`",
            ) from None
        return {worker: reply for one in replies or () for worker, reply in one.items()}

    @cached_property
    def served(self) -> dict[str, set[str]]:
        """The queues of each worker that replies."""
        replies = self._broadcast("active_queues")
        return {worker: {one["name"] for one in queues} for worker, queues in replies.items()}

    @cached_property
    def ours(self) -> list[str]:
        """The workers that serve our queues."""
        return sorted(worker for worker, queues in self.served.items() if queues & {*self.runtime.keys.queues})

    @cached_property
    def pools(self) -> dict[str, Any]:
        """What each of our workers reports about its pool."""
        return {worker: stats.get("pool", {}) for worker, stats in self.ask("stats").items()}

    def row(self, name: str) -> Any:
        """Return the only row of a named query, by column."""
        (found,) = fetch(self.runtime.engine, name)
        return found

    @cached_property
    def redis_info(self) -> dict[str, Any] | None:
        """The reply to INFO; None: this user is not allowed to send it."""
        try:
            info: dict[str, Any] = self.runtime.redis.info()
        except NoPermissionError:
            return None
        return info


Findings = Iterator[Finding]


class Check(NamedTuple):
    """A check; skipped if one that it needs has found a problem. `sound` is reported if it finds nothing."""

    name: str
    question: Callable[[_Examined], Findings | None]
    needs: tuple[str, ...] = ()
    sound: str = ""


def examine(runtime: Runtime) -> list[Finding]:
    """Run all checks, except those that need a check which has found a problem."""
    examined = _Examined(runtime)
    found = _examine(examined, CHECKS)
    if "pipelines" in examined.sound:
        others = [other for other in runtime.by_redis() if other is not runtime]
        examined.others = [_Examined(other, examined.sound - OF_EACH_REDIS) for other in others]
    for other in examined.others:
        name = other.runtime.settings.redis
        findings = _examine(other, [check for check in CHECKS if check.name in OF_EACH_REDIS])
        found += [replace(one, check=f"{one.check} ({name or 'default'})") for one in findings]
    return found + _examine(examined, OF_ALL_REDIS)


def _examine(examined: _Examined, checks: Sequence[Check]) -> list[Finding]:
    """Run checks, and add those that find no problem to `examined.sound`."""
    found = list[Finding]()
    for check in checks:
        if not examined.sound.issuperset(check.needs) or (check.name in OF_WORKERS and not examined.needs_workers):
            continue
        findings = list[Finding]()
        try:
            with translated_errors():
                findings.extend(check.question(examined) or ())
        except TaskBridgeError as error:
            findings.append(_problem(error.what, error.remedy))
        except Exception as error:
            # Keep the findings of the other checks.
            remedy = "please report this as a bug"
            findings.append(_problem(f"this check failed: {error_line(error)}", remedy))
        if not any(one.level is Level.PROBLEM for one in findings):
            examined.sound.add(check.name)
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
        yield _problem(f"{server['version']} is a standby, which is read-only", "connect to the primary")
    else:
        yield Finding(Level.OK, str(server["version"]))


def _encoding(examined: _Examined) -> Findings:
    name = examined.row("server")["encoding"]
    remedy = "move to a database with `ENCODING 'UTF8'`"
    if name == "SQL_ASCII":
        yield _warning(f"{name} does not validate text, and rejects documents with non-ASCII characters", remedy)
    elif name != "UTF8":
        yield _warning(f"{name} rejects names and documents with characters that it lacks", remedy)


def _pooler(examined: _Examined) -> Findings:
    found = pooler_of(examined.runtime.engine, examined.runtime.settings.postgres_url)
    if found is None:
        return
    prepares = "statements are prepared" if found.prepares else "statements are not prepared"
    yield Finding(
        Level.OK, f"{found.name} in {found.mode} mode: {prepares}, and each transaction sets its own time limits"
    )


def _listening(examined: _Examined) -> Findings:
    """Announce a commit, and wait for it where workers listen."""
    runtime = examined.runtime
    if not runtime.settings.tail_listens:
        return
    try:
        listener = runtime.changes.listen()
        fetch(runtime.engine, "notify")
        if list(listener.notifies(timeout=PROBE_SECONDS, stop_after=1)):
            yield Finding(Level.OK, "workers are notified of announced commits")
        else:
            yield _problem(
                f"a worker would not be notified of announced commits: none arrived within {PROBE_SECONDS:g} s",
                "set TASKBRIDGE_LISTEN_URL to the same database as TASKBRIDGE_POSTGRES_URL, without a pooler",
            )
    finally:
        runtime.changes.close()


def _tables(examined: _Examined) -> Findings:
    """Check that changes of adopted tables are recorded, and that their rows can be read."""
    engine = examined.runtime.engine
    others = undeclared_readers(engine, examined.runtime.pipelines.names())
    for source, wrong in check_adoptions(engine).items():
        for name in others.get(source, ()):
            yield _warning(
                f"{source}: the pipeline {name} has read it too, so what a handler writes back is recorded as a change",
                f"if {name} no longer exists, run `taskbridge pipeline remove {name}`; otherwise limit the watched "
                "columns with `taskbridge adopt --columns`",
            )
        for what, remedy, is_recorded in wrong:
            yield (_warning if is_recorded else _problem)(f"{source}: {what}", remedy)
        if not wrong:
            yield Finding(Level.OK, f"{source}: changes are recorded, and rows can be read")


def _redis(examined: _Examined) -> Findings:
    examined.runtime.gate.check_server()
    examined.runtime.gate.check_scripts()
    info = examined.redis_info
    if info is None:
        yield _warning(
            "this user may not send INFO, so the version, role and eviction policy are unknown",
            "grant +info, or check yourself that it is a primary with maxmemory-policy noeviction",
        )
        return
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else info["redis_version"]
    if info.get("role") != "master":
        yield _problem(f"{version} is a replica, which is read-only", "connect to the primary")
    elif info.get("maxmemory") and info.get("used_memory", 0) >= info["maxmemory"]:
        yield _problem(f"{version} is out of memory and refuses writes", "raise maxmemory, or delete other keys")
    elif "err" in (info.get("aof_last_write_status"), info.get("rdb_last_bgsave_status")):
        yield _problem(
            f"{version} could not save to disk, and may refuse writes", "free disk space; its log has the details"
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
            f"{policy} with {limit:,} bytes: keys of the gate and queues may be evicted when memory is full",
            "set maxmemory-policy noeviction",
        )


def _replication(examined: _Examined) -> Findings:
    """Warn if a primary would go on accepting writes after its Sentinels have replaced it."""
    info = examined.redis_info or {}
    is_watched = SentinelAddress.of(examined.runtime.settings.gate_url) is not None
    # Redis counts the good replicas only if min-replicas-to-write is set.
    if is_watched and info.get("connected_slaves", 0) > 1 and "min_slaves_good_slaves" not in info:
        yield _warning(
            "min-replicas-to-write is not set: a primary that is cut off from its Sentinels accepts writes, which are "
            "lost when it rejoins",
            "set min-replicas-to-write 1 and min-replicas-max-lag 10 on each server",
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
        # The reply may have been made at any moment of the round trip.
        if abs(skew) - took / 2 > SKEW_SECONDS:
            yield _warning(f"{clocks} are {abs(skew):.1f} s apart", "synchronize the clocks with NTP")


def _pipelines(examined: _Examined) -> Findings:
    runtime = examined.runtime
    runtime.names()
    yield Finding(Level.OK, ", ".join(runtime.pipelines.names()))


def _journal(examined: _Examined) -> Findings:
    """Warn that a worker would not start with these variables; running workers have other ones."""
    try:
        check_journal(examined.runtime)
    except ConfigurationError as error:
        yield _warning(error.what, error.remedy)


def _broker(examined: _Examined) -> Findings:
    app = examined.runtime.app
    check_serializer(app)
    if examined.runtime.publishes_in_gate or examined.runtime.broker:
        # The broker is the gate's Redis. Its error names the cause, and the setting to correct.
        examined.runtime.redis.ping()
    with broker_connection(app, **bounded(app, examined.runtime.broker)) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_SECONDS)
        lengths = [f"{_length(connection, queue):,} in {queue}" for queue in examined.runtime.keys.queues]
    yield Finding(Level.OK, f"{connection.transport.driver_type}; messages: {', '.join(lengths)}")


def _length(connection: Any, queue: str) -> int:
    """Return the number of messages in a queue; in Redis an empty queue does not exist."""
    channel = connection.channel()
    try:
        length: int = channel.queue_declare(queue, passive=True).message_count
    except ChannelError:
        return 0
    finally:
        channel.close()
    return length


def _workers(examined: _Examined) -> Findings:
    runtime, queues = examined.runtime, ", ".join(examined.runtime.keys.queues)
    if not runtime.app.conf.worker_enable_remote_control:
        yield _warning(
            "the app's worker_enable_remote_control is off, so its workers cannot report which queues they serve",
            f"check in their logs that they serve {queues}",
        )
        return
    if not examined.ours and (seen := _seen_elsewhere(examined)):
        yield _problem(
            f"{seen}, but no worker that serves it replies at {_broker_of(runtime)}",
            "if the workers run your own app, name its module as in `celery -A`: `taskbridge doctor -A MODULE`; "
            "otherwise set TASKBRIDGE_BROKER_URL to the broker of the workers; if they have just stopped, start them",
        )
    elif not examined.served:
        yield _problem(
            f"no worker replied within {ANSWER_SECONDS:g} s, so nothing is handled",
            "start `celery -A taskbridge worker`, a worker of your own app, or `taskbridge up`",
        )
    else:
        for queue in examined.runtime.keys.queues:
            if serving := sum(queue in names for names in examined.served.values()):
                yield Finding(Level.OK, f"{serving:,} serve {queue}")
            else:
                yield _problem(f"none of {len(examined.served):,} serves {queue}", f"add it to -Q: {queues}")
        yield from _declarations(examined)
        yield from _time_limits(examined)


def _seen_elsewhere(examined: _Examined) -> str:
    """Return a sentence about a pipeline that a worker has just polled; "" if there is none."""
    # Other checks report errors that occur here.
    with suppress(Exception):
        for name, ages in read_ages(examined.runtime.engine, examined.runtime.names()).items():
            if not nobody_looks(ages.poller, examined.runtime.settings.tail_interval):
                return f"a worker polled {name} {ages.poller:,.0f} s ago"
    return ""


def _broker_of(runtime: Runtime) -> str:
    """Return the URL of the broker, without its password."""
    with broker_connection(runtime.app, **runtime.broker) as connection:
        return str(connection.as_uri())


def _declarations(examined: _Examined) -> Findings:
    """Warn about workers that take runs of pipelines which they do not declare."""
    for worker, declared in sorted(examined.ask(DECLARED_COMMAND).items()):
        lacks = sorted({*examined.runtime.names()} - {*declared}) if isinstance(declared, list) else []
        if lacks:
            yield _warning(
                f"{worker} does not declare {', '.join(lacks)}: it delays each run of it that it takes from the queue",
                "set the same TASKBRIDGE_PIPELINES for every worker",
            )


def _time_limits(examined: _Examined) -> Findings:
    """Warn about workers that kill a run before its time budget is spent. Some pools have no time limits."""
    runtime = examined.runtime
    pipelines = [runtime.pipelines[name] for name in runtime.names()]
    longest = runtime.settings.run_budget + max((one.soft_time_limit or 0 for one in pipelines), default=0)
    for worker, pool in sorted(examined.pools.items()):
        _, hard = pool.get("timeouts") or (0, 0)
        if hard and hard <= longest:
            yield _warning(
                f"{worker} kills the process of a run after {hard:g} s, but a run may take {longest:g} s; each kill "
                "counts as a failed attempt of its records",
                "set task_time_limit (or --time-limit) to more than TASKBRIDGE_RUN_BUDGET plus the longest "
                "soft_time_limit of a pipeline",
            )


def _transport(examined: _Examined) -> Findings:
    """Report workers that use a transport other than ours, and warn about those without a socket timeout."""
    runtime = examined.runtime
    if scheme_of_broker(runtime.app.conf) not in REDIS_SCHEMES:
        return
    for worker, conf in sorted(examined.ask("conf").items()):
        transport = conf.get("broker_transport")
        if runtime.publishes_in_gate and transport not in TRANSPORTS:
            yield Finding(
                Level.OK,
                f"{worker} uses {transport or 'the transport of kombu'}, which writes run messages to `unacked`",
            )
        if not (conf.get("broker_transport_options") or {}).get("socket_timeout"):
            yield _warning(
                f"the app of {worker} sets no socket_timeout for its broker: a process that publishes hangs if a "
                "connection is lost silently",
                f"add to the app's broker_transport_options: {BOUNDED_CONNECTIONS}",
            )


def _probe(examined: _Examined) -> Findings:
    """Send a probe through each queue, as runs are sent, and wait for a worker to answer."""
    runtime = examined.runtime
    if runtime.eager:
        return
    began, runtime.publisher.error = time.monotonic(), None
    probes = {queue: secrets.token_hex(8) for queue in Queue}
    texts = {queue: runtime.gate.probe(queue, token) for queue, token in probes.items()}
    if runtime.publisher.error is not None:
        raise runtime.publisher.error
    waiting = set(Queue)
    while waiting and time.monotonic() - began < PROBE_SECONDS:
        waiting = {queue for queue in waiting if runtime.gate.answered(probes[queue]) is None}
        time.sleep(0.02 if waiting else 0)
    if not waiting:
        yield Finding(Level.OK, f"workers answered a probe through each queue in {time.monotonic() - began:.1f} s")
    untaken = {queue for queue in waiting if (text := texts[queue]) and runtime.gate.withdraw(queue, text)}
    for queue in sorted(waiting):
        yield _unanswered(examined, runtime.keys.queue(queue), is_taken=queue not in untaken)


def _unanswered(examined: _Examined, queue: str, *, is_taken: bool) -> Finding:
    within = f"{queue} within {PROBE_SECONDS:g} s"
    if examined.ours and _all_busy(examined, queue):
        return _warning(
            f"no worker answered a probe through {within}: all slots are busy",
            "run `taskbridge doctor` again when one is free; if they are usually busy, start more workers",
        )
    if is_taken:
        return _problem(
            f"a worker took a probe from {queue}, but did not answer in this Redis within {PROBE_SECONDS:g} s",
            f"use the same {redis_variable(examined.runtime.settings.redis)} for this process and all workers; "
            "otherwise read the workers' logs",
        )
    return _problem(
        f"no worker took a probe from {within}, although some serve it",
        "use the same TASKBRIDGE_* variables and broker_transport_options for this process and the workers "
        "(`taskbridge doctor -A MODULE` uses the options of your app)",
    )


def _all_busy(examined: _Examined, queue: str) -> bool:
    """Whether every worker that serves a queue is busy."""
    active = examined.ask("active")
    return all(
        len(active.get(worker, ())) >= examined.pools.get(worker, {}).get("max-concurrency", 1)
        for worker in examined.ours
        if queue in examined.served[worker]
    )


def _work(examined: _Examined) -> Findings:
    """Look for stalled work."""
    runtime = examined.runtime
    read = {runtime.pipelines[name].source for name in runtime.pipelines.names()}
    for source in unread_sources(runtime.engine, read):
        yield _warning(
            f"{source}: no pipeline reads this source, so its records are never handled",
            "declare a pipeline with this source; if the name is a typo, write the records again under the right one",
        )
    longest = max(RECONCILER_SECONDS, INTERVALS * runtime.settings.base_interval)
    for name, ages in read_ages(runtime.engine, runtime.pipelines.names()).items():
        if ages.reconciler > longest and not nobody_looks(ages.poller, runtime.settings.tail_interval):
            since = "never" if math.isinf(ages.reconciler) else f"last {ages.reconciler:,.0f} s ago"
            yield _warning(
                f"{name}: the reconciler is not running ({since})",
                "start a worker that declares the pipeline; if one is running, its log says what is wrong",
            )
    for one in health(Context.of(runtime)).findings:
        yield (_problem if one.grave else _warning)(one.sentence, one.remedy)


def _sessions(examined: _Examined) -> Findings:
    """Compare the number of sessions that the workers may need with what this process's role may open."""
    reached = [one for one in (examined, *examined.others) if "broker" in one.sound]
    slots = [pool.get("max-concurrency", 0) for one in reached for pool in one.pools.values()]
    if not slots:
        return
    need = sum(slots) + OTHER_SESSIONS * len(slots)
    limits = examined.row("session_limits").values()
    limit, whose = min((one, whose) for one, whose in zip(limits, _LIMITS, strict=True) if one is not None)
    workers = counted(len(slots), "worker")
    text = f"{workers} may need {need:,} Postgres sessions at once, and {whose} allows {limit:,} for all clients"
    if need > limit:
        yield _warning(text, "raise it, or start workers with fewer slots (-c)")
    else:
        yield Finding(Level.OK, text)


CHECKS: Final = (
    Check("Postgres", _postgres),
    Check("encoding", _encoding, ("Postgres",), "UTF8, which can store every name and document"),
    Check("pooler", _pooler, ("Postgres",)),
    Check("listening", _listening, ("Postgres",)),
    Check("schema", lambda examined: check_schema(examined.runtime.engine), ("Postgres",), "up to date"),
    Check(
        "cluster",
        lambda examined: check_cluster(examined.runtime.engine),
        ("schema",),
        "matches the transaction ids in the cursors",
    ),
    Check("tables", _tables, ("schema",)),
    Check("Redis", _redis),
    Check("eviction", _eviction, ("Redis",), "keys are never evicted"),
    Check("replication", _replication, ("Redis",)),
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
        "workers poll for records; no run is overdue, no circuit is open, no tenant is failing, and no record is in "
        "quarantine or unmatched",
    ),
)
"""In the order in which they run."""
OF_EACH_REDIS: Final = frozenset(
    {"Redis", "eviction", "replication", "gate", "clocks", "broker", "workers", "transport", "probe"}
)
"""The checks of every Redis server that pipelines are on."""
OF_WORKERS: Final = frozenset({"workers", "transport", "probe"})
"""The checks that are left out for a Redis without pipelines."""
OF_ALL_REDIS: Final = (Check("sessions", _sessions, ("cluster",)),)
"""The checks that need what those have found."""
