"""The faults: what each strikes, and the bound within which the tenants that it met go on."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from taskbridge.declaring.failures import FIRST_BACKOFF
from taskbridge.settings import Settings
from taskbridge.store.db import GRACE
from taskbridge.worker.failures import LEAST_DEATHS
from taskbridge.worker.poller import AFTER_FAILURE, HOLDS_LONGER
from verification.torture import strikes_adopted as adopted
from verification.torture import strikes_cursors as cursors
from verification.torture import strikes_poller as poller
from verification.torture import strikes_servers as servers
from verification.torture import strikes_work as work
from verification.torture.acts import LONGEST_WAIT, MAX_ATTEMPTS, SOFT_TIME_LIMIT
from verification.torture.producer import LONGEST_CALL
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import HARD_LIMIT, Planned
from verification.torture.server_clock import compiler
from verification.torture.strikes_cursors import CIRCUIT_OPENS_FOR

__all__ = ["FAULTS", "LEAST_DEATHS", "LOOK", "ONE_MORE_OUTAGE", "OUTAGES", "SERVERS", "Fault", "available", "tries"]

SERVERS: Final = {
    "pgbouncer": {"sessions_silent"},
    "sentinel": {
        "connections_silent",
        "redis_alone",
        "redis_clock",
        "redis_kept",
        "redis_lost",
        "redis_paused",
        "redis_rewound",
        "redis_switched",
        "replies_lost",
    },
}
"""What an arena may have in front of Postgres and Redis, and the faults that cannot be made through it."""


def tries(records: int, alone: int) -> int:
    """Return how often one of `records` can be tried before it is in quarantine, if it fails each time.

    Twice among all of them, once in each half that it is in, and then `alone`.
    """
    return 2 + math.ceil(math.log2(records)) + alone


@dataclass(frozen=True)
class Bound:
    """Seconds, by the settings and how long the fault lasted, without the margin; `formula` says it in words."""

    formula: str
    seconds: Callable[[Settings, float], float]


def _search(
    formula: str, each: Callable[[Settings], float], alone: int = MAX_ATTEMPTS, *, doubling: bool = False
) -> Bound:
    """Return the bound of a search for a bad record whose tries take so long `each`.

    The back-off doubles while the record is alone, or from the first try on.
    """
    among, count = tries(work.RECORDS_OF_FATAL, 0), tries(work.RECORDS_OF_FATAL, alone)
    doubled = [FIRST_BACKOFF * 2**number for number in range(count - 1)]
    backoffs = sum(doubled if doubling else [FIRST_BACKOFF] * among + doubled[: alone - 1])
    return Bound(
        f"{count} tries of {formula}{LOOK:g} s + back-offs of {backoffs:g} s",
        lambda settings, _: count * (each(settings) + LOOK) + backoffs,
    )


LOOK: Final = 1.0
"""Seconds beside its own time that each try of a record may take: a look of the ticker, a worker that starts."""

TTL = Bound("runner TTL", lambda settings, _: settings.runner_ttl)
REPUBLISH = Bound("republish_after", lambda settings, _: settings.republish_after)
BASE = Bound("base interval", lambda settings, _: settings.base_interval)
TAIL = Bound("tail interval", lambda settings, _: settings.tail_interval)
TAIL_IN_RUN = Bound("tail interval + tick", lambda settings, _: settings.tail_interval + work.POLICY.tick)
HOLD = Bound(f"hold of {HOLDS_LONGER:g} s + tail interval", lambda settings, _: HOLDS_LONGER + settings.tail_interval)
# Redis may give a run message to a worker that is frozen.
HOLD_FROZEN = Bound(
    f"{HOLD.formula} + republish_after",
    lambda settings, lasted: HOLD.seconds(settings, lasted) + settings.republish_after,
)
# A worker leaves the pipeline alone for as long as the poller took too long, and for a second at the least.
LOCK = Bound(
    f"{AFTER_FAILURE:g} s + lock + tail interval",
    lambda settings, lasted: AFTER_FAILURE + lasted + settings.tail_interval,
)
EITHER = Bound("runner TTL or republish_after", lambda settings, _: max(settings.runner_ttl, settings.republish_after))
SWITCH = Bound("2 s + base interval", lambda settings, _: 2.0 + settings.base_interval)
NAMED: Final = "the Sentinels name the replica"
SILENT = Bound("10 s", lambda _, __: 10.0)
TICK = Bound("tick", lambda _, __: work.POLICY.tick)
# Waits double, and each is at least three quarters of its length: the one under way at the end of an outage is at most
# as long as the outage, over three quarters, and the first one: the circuit's, which is the longer.
BACKOFF = Bound("circuit's first wait + outage / 0.75", lambda _, lasted: CIRCUIT_OPENS_FOR + lasted / 0.75)
# Where the source stood still, runs of its tenants failed meanwhile.
STOOD_STILL = Bound(
    f"the longer of base interval and {BACKOFF.formula},",
    lambda settings, lasted: max(BASE.seconds(settings, lasted), BACKOFF.seconds(settings, lasted)),
)
# The circuit closes when a probe's call is over, and whose record that takes is up to the wait queue.
PROBED = Bound(
    f"{BACKOFF.formula} + {LONGEST_CALL:g} s for the probe's call",
    lambda settings, lasted: BACKOFF.seconds(settings, lasted) + LONGEST_CALL,
)
FIRST_WAIT = Bound("circuit's first wait", lambda _, __: CIRCUIT_OPENS_FOR)
SILENCE = Bound(
    f"statement_timeout + {GRACE:g} s + circuit's first wait + waits listed below",
    lambda settings, lasted: settings.statement_timeout + GRACE + CIRCUIT_OPENS_FOR + lasted,
)
# What `longer` of the fault adds for each tenant is in the page's text only.
CURSORS = Bound("run budget + waits listed below", lambda settings, _: settings.run_budget)
TURN = Bound(
    f"tick + run budget + {work.FLOOD_CALL:g} s for a call",
    lambda settings, _: work.POLICY.tick + settings.run_budget + work.FLOOD_CALL,
)
WAIT = Bound("2 s", lambda _, __: LONGEST_WAIT)
TRIES = _search("", lambda _: 0.0)
DEATHS = _search("runner TTL + ", lambda settings: settings.runner_ttl, LEAST_DEATHS)
OUTAGES = _search("", lambda _: 0.0, doubling=True)
ONE_MORE_OUTAGE: Final = FIRST_BACKOFF * 2 ** (tries(work.RECORDS_OF_FATAL, MAX_ATTEMPTS) - 1)
"""Seconds that such a search takes longer where a server was away during one of its tries: the back-off has doubled."""
KEPT = _search(f"statement_timeout + {GRACE:g} s + ", lambda settings: settings.statement_timeout + GRACE)
LIMITS = _search("hard time limit + runner TTL + ", lambda settings: HARD_LIMIT + settings.runner_ttl, LEAST_DEATHS)
HANGS = _search("soft time limit + ", lambda _: SOFT_TIME_LIMIT)


@dataclass(frozen=True)
class Fault:
    """One fault; two that strike together differ in their `subject`."""

    subject: str
    title: str
    since: str
    bound: Bound
    strike: Callable[[Scene, Planned], Struck]
    opens_circuit: bool = False
    """Whether so many runs fail meanwhile that the pipeline's circuit opens."""

    needs: str = ""
    """The one of `SERVERS` that it strikes."""

    is_of_users: bool = False
    """Whether the users of the adopted table do it themselves, so that none of them may be held up."""

    @property
    def strikes_users(self) -> bool:
        """Whether users of Postgres may be held up, because Postgres itself is struck."""
        return self.subject == "postgres" and not self.is_of_users

    @property
    def forgets(self) -> bool:
        """Whether deadlines get lost, so that those who had one are found by passes and wait for their turn."""
        return self.subject == "redis" and self.bound in (BASE, SWITCH)


FAULTS: Final[dict[str, Fault]] = {
    "worker_killed": Fault("workers", "SIGKILL of a worker", "the signal", TTL, servers.worker_killed),
    "worker_frozen": Fault(
        "workers",
        "SIGSTOP of a worker for two TTLs and more, half of them with row locks",
        "SIGSTOP",
        TTL,
        servers.worker_frozen,
    ),
    "worker_terminated": Fault("workers", "SIGTERM of a worker", "the signal", EITHER, servers.worker_terminated),
    "clock_moved": Fault("workers", "a worker with a wrong clock joins", "its readiness", EITHER, servers.worker_joins),
    "handler_async": Fault(
        "workers", "a worker with a coroutine as handler joins", "its readiness", EITHER, servers.worker_joins
    ),
    "redis_kept": Fault("redis", "SIGKILL of Redis, data kept", "Redis answers again", BASE, servers.redis_kept),
    "redis_rewound": Fault(
        "redis", "SIGKILL of Redis, older data come back", "Redis answers again", BASE, servers.redis_rewound
    ),
    "redis_lost": Fault("redis", "SIGKILL of Redis, data lost", "Redis answers again", BASE, servers.redis_lost),
    "redis_flushed": Fault("redis", "FLUSHALL", "the command", BASE, servers.redis_flushed),
    "scripts_flushed": Fault("redis", "SCRIPT FLUSH", "the command", TTL, servers.scripts_flushed),
    "redis_paused": Fault("redis", "CLIENT PAUSE", "its end", TTL, servers.redis_paused),
    "clients_killed": Fault("redis", "CLIENT KILL TYPE normal", "the command", EITHER, servers.clients_killed),
    "redis_full": Fault(
        "redis", "Redis refuses writes (maxmemory)", "writes are taken again", BASE, servers.redis_full
    ),
    "redis_alone": Fault(
        "redis", "Redis refuses writes (no replica)", "writes are taken again", BASE, servers.redis_alone
    ),
    "connections_silent": Fault(
        "workers", "one worker's connections to Redis fall silent", "the silence", SILENT, servers.connections_silent
    ),
    "replies_lost": Fault("messages", "replies of scripts are lost", "the last loss", EITHER, servers.replies_lost),
    "hard_limit": Fault(
        "workers",
        "a record outlasts the hard time limit of a worker that joins",
        "its commit",
        LIMITS,
        servers.hard_limit,
    ),
    "redis_switched": Fault(
        "redis",
        "a replica takes over, old sockets stay READONLY",
        "the new one answers",
        SWITCH,
        servers.redis_switched,
    ),
    "redis_clock": Fault("redis", "Redis's clock steps back by an hour", "the step", BASE, servers.redis_clock),
    "postgres_fast": Fault(
        "postgres",
        "Postgres stopped (fast), started",
        "it answers again",
        BACKOFF,
        servers.postgres_fast,
        opens_circuit=True,
    ),
    "postgres_immediate": Fault(
        "postgres",
        "Postgres stopped (immediate), started",
        "it answers again",
        BACKOFF,
        servers.postgres_immediate,
        opens_circuit=True,
    ),
    "sessions_terminated": Fault(
        "postgres",
        "all sessions of Postgres terminated",
        "the command",
        BACKOFF,
        servers.sessions_terminated,
        opens_circuit=True,
    ),
    "session_silent": Fault(
        "postgres",
        "SIGSTOP of a session in its handler",
        "SIGCONT or SIGKILL",
        BACKOFF,
        servers.session_silent,
        opens_circuit=True,
    ),
    "sessions_silent": Fault(
        "postgres", "SIGSTOP of one process's idle sessions", "SIGSTOP", SILENCE, servers.sessions_silent
    ),
    "messages_lost": Fault("messages", "run messages lost", "the notify", REPUBLISH, work.messages_lost),
    "messages_doubled": Fault(
        "messages", "run messages late and doubled", "the notify", REPUBLISH, work.messages_doubled
    ),
    "tenants_flood": Fault(
        "messages", "hundreds or 10,000 others have a backlog", "the deadline", TURN, work.tenants_flood
    ),
    "producer_died": Fault("producer", "a producer dies before it notifies", "the commit", TAIL, work.producer_died),
    "notified_first": Fault(
        "producer", "a producer notifies before it commits", "the commit", TAIL, work.notified_first
    ),
    "written_plainly": Fault(
        "producer", "records written by plain SQL, nobody notifies", "the commit", TAIL, poller.written_plainly
    ),
    "written_in_run": Fault(
        "producer",
        "plain SQL during a run that nobody notified",
        "the run's end",
        TAIL_IN_RUN,
        poller.written_in_run,
    ),
    "poller_killed": Fault(
        "workers",
        "SIGKILL of the worker that has the poller, then plain SQL",
        "the commit",
        HOLD,
        poller.poller_killed,
    ),
    "poller_frozen": Fault(
        "workers",
        "SIGSTOP of the worker that has the poller, then plain SQL",
        "the commit",
        HOLD_FROZEN,
        poller.poller_frozen,
    ),
    "hold_deleted": Fault(
        "redis", "the poller's hold is deleted beside plain SQL", "the commit", TAIL, poller.hold_deleted
    ),
    "listeners_terminated": Fault(
        "postgres", "sessions that listen terminated beside plain SQL", "the commit", TAIL, poller.listeners_terminated
    ),
    "poller_locked": Fault(
        "postgres", "the poller's row is locked during plain SQL", "the commit", LOCK, poller.poller_locked
    ),
    "poller_rewound": Fault(
        "postgres",
        "snapshots of poller and reconciler set back beside plain SQL",
        "the commit",
        TAIL,
        poller.poller_rewound,
    ),
    "poller_deleted": Fault(
        "postgres",
        "snapshots of poller, reconciler or both deleted beside plain SQL",
        "the command",
        BASE,
        poller.poller_deleted,
    ),
    "cursors_locked": Fault(
        "postgres",
        "1 to 8 cursors are locked while their tenants and 60 others have events",
        "the release, or the commit for those that are not locked",
        CURSORS,
        cursors.cursors_locked,
        opens_circuit=True,
    ),
    "columns_change": Fault(
        "postgres",
        "users change columns of the adopted table, and back",
        "the change, or adopting it again",
        STOOD_STILL,
        adopted.columns_change,
        is_of_users=True,
    ),
    "backfilled_beside_users": Fault(
        "postgres",
        "backfills beside users with transactions that take long",
        "the end of the backfill",
        BASE,
        adopted.backfilled_beside_users,
        is_of_users=True,
    ),
    "committed_late": Fault(
        "producer", "a transaction stays open beside short ones", "its commit", TICK, work.committed_late
    ),
    "lease_outlasted": Fault("handler", "a handler outlasts the lease", "its end", TICK, work.lease_outlasted),
    "handler_failed": Fault("handler", "a handler raises once", "the error", FIRST_WAIT, work.handler_failed),
    "downstream_down": Fault(
        "handler", "what all handlers call is down", "it is up again", PROBED, work.downstream_down, opens_circuit=True
    ),
    **{
        f"record_{act}": Fault("record", f"a record {title}", "its commit", bound, work.record_acts(act))
        for act, title, bound in (
            ("kills", "kills its process (SIGKILL, segfault)", DEATHS),
            ("exits", "exits, cancels, interrupts", TRIES),
            ("holds", "holds the interpreter past the TTL", DEATHS),
            ("hangs", "hangs", HANGS),
            ("commits_badly", "fails at the commit", TRIES),
            ("swallows", "swallows an error of the database", TRIES),
            ("odd_text", "ends in a surrogate, a NUL, 10 MB of text", TRIES),
            ("cannot_reach", "always meets TimeoutError, ConnectionError", OUTAGES),
            ("asks_to_wait", "asks to wait", WAIT),
            ("runs_out_of_memory", "raises MemoryError", TRIES),
            ("shuts_down", "raises WorkerShutdown, WorkerTerminate, sends SIGTERM to itself", DEATHS),
            ("keeps_reference", "keeps a stream or a COPY", KEPT),
            ("leaves_state", "leaves state in its session or its context", WAIT),
        )
    },
    "record_undecodable": Fault("record", "a record cannot be decoded", "its commit", TRIES, work.record_undecodable),
    **{
        f"pgbouncer_{name}": Fault(
            "pgbouncer",
            title,
            since,
            BACKOFF,
            partial(servers.pgbouncer_away, signals=signals),
            opens_circuit=True,
            needs="pgbouncer",
        )
        for name, title, since, signals in (
            ("killed", "SIGKILL of PgBouncer, started", "it answers again", (signal.SIGKILL,)),
            ("frozen", "SIGSTOP of PgBouncer", "SIGCONT", (signal.SIGSTOP, signal.SIGCONT)),
            ("paused", "PAUSE of PgBouncer", "RESUME", (signal.SIGUSR1, signal.SIGUSR2)),
        )
    },
    **{
        f"sentinel_{name}": Fault("redis", title, since, SWITCH, strike, needs="sentinel")
        for name, title, since, strike in (
            ("killed", "SIGKILL of a primary whose replica lags", NAMED, servers.sentinel_killed),
            ("frozen", "SIGSTOP of a primary that comes back as one", "SIGCONT", servers.sentinel_frozen),
            ("cut_off", "a primary is cut off from Sentinels and replica", NAMED, servers.sentinel_cut_off),
            ("asked", "SENTINEL FAILOVER", NAMED, servers.sentinel_asked),
        )
    },
}


def available(servers: Collection[str] = ()) -> dict[str, Fault]:
    """Return the faults that can be made on this machine in an arena with these of `SERVERS`."""
    without = set[str]() if compiler() is not None else {"redis_clock"}
    without = without.union(*(SERVERS[one] for one in servers))
    return {
        name: fault
        for name, fault in FAULTS.items()
        if name not in without and (not fault.needs or fault.needs in servers)
    }
