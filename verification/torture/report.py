"""The report: a line of JSON per schedule, and one table of all faults."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from taskbridge.settings import Settings
from verification.torture.arena import SETTINGS
from verification.torture.arenas import WITHIN
from verification.torture.course import HARNESS_FAILED, Recovery, Result
from verification.torture.faults import FAULTS, LOOK, ONE_MORE_OUTAGE
from verification.torture.producer import LONGEST_CALL
from verification.torture.users import LONGEST_WAIT
from verification.torture.verdict import TRIES_PER_FAULT
from verification.torture.workers import LONG_CALL

__all__ = ["page", "summary", "table"]

KINDS = (
    "lost",
    "doubled",
    "double advance",
    "mixed",
    "leak",
    "rolled back",
    "wrong end",
    "too many tries",
    "stuck",
    "late",
    "died",
    "user failed",
    "user waited",
    "user misled",
    "never deleted",
    HARNESS_FAILED,
)


def table(results: Sequence[Result], margin: float) -> str:
    """Return the table of faults as Markdown."""
    lines = [
        "| fault | drawn | alone | held up | median | worst | bound | counted from | beyond |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    recoveries = [one for result in results for one in result.recoveries]
    for name, fault in FAULTS.items():
        alone = [one for one in recoveries if one.fault == name and not one.together]
        drawn = sum(one.fault == name for one in recoveries)
        if not drawn:
            continue
        bound = (
            f"{fault.bound.formula} + {margin:g} s{_computed(fault.bound.seconds(_settings(), 0.0) + margin, alone)}"
        )
        lines.append(_row(fault.title, drawn, alone, bound, fault.since))
    together = [one for one in recoveries if one.together]
    lines.append(_row("two of them at once", len(together), together, "the sum of both", "the later"))
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> str:
    """Return the counts in three lines."""
    counts = Counter(violation.partition(":")[0] for result in results for violation in result.violations)
    exits = sum(len(result.self_exits) for result in results)
    refusals = sum(len(result.refusals) for result in results)
    recoveries = [one for result in results for one in result.recoveries]
    stalled = [one for one in recoveries if one.was_stalled]
    return (
        f"{len(results)} schedules, {len(recoveries)} faults, "
        f"{sum(result.committed for result in results)} records, "
        f"{sum(result.delivered for result in results)} deliveries, "
        f"{sum(result.user_transactions for result in results)} transactions of users of an adopted table.\n"
        f"{', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}.\n"
        f"{exits} workers exited by themselves, {refusals} could not start because a server was unavailable or full.\n"
        f"{_beyond(stalled)}\n"
    )


def _beyond(stalled: Sequence[Recovery]) -> str:
    if not stalled:
        return "No recovery was beyond its bound."
    most = max(one.recovered - one.bound for one in stalled if one.recovered is not None)
    return (
        f"{len(stalled)} recoveries were beyond their bound, by at most {most:.1f} s, but by no more than the machine "
        "itself stalled."
    )


def page(results: Sequence[Result], seed: int, margin: float, servers: Sequence[str] = ()) -> str:
    """Return docs/explanation/torture.md."""
    settings = ",\n".join(f"`TASKBRIDGE_{name.upper()}` {value:g} s" for name, value in SETTINGS.items())
    return PAGE.format(
        summary=summary(results),
        table=table(results, margin),
        seed=f"{seed} and `--servers {','.join(servers)}`" if servers else seed,
        count=len(results),
        settings=settings,
        margin=margin,
        look=LOOK,
        long=LONG_CALL,
        longest=LONGEST_CALL,
        outage=ONE_MORE_OUTAGE,
        extra=TRIES_PER_FAULT,
        within=WITHIN / 60,
        waits=LONGEST_WAIT,
    )


def _settings() -> Settings:
    return Settings(**SETTINGS)


def _computed(without_outage: float, alone: Sequence[Recovery]) -> str:
    longest = max((one.bound for one in alone), default=without_outage)
    return f" = {without_outage:.1f} s" + (f" to {longest:.1f} s" if longest > without_outage + 0.05 else "")


def _row(title: str, drawn: int, alone: Sequence[Recovery], bound: str, since: str) -> str:
    times = [one.recovered for one in alone if one.recovered is not None]
    median = f"{statistics.median(times):.2f} s" if times else "-"
    worst = f"{max(times):.2f} s" if times else "-"
    beyond = sum(one.is_late for one in alone)
    return f"| {title} | {drawn} | {len(alone)} | {len(times)} | {median} | {worst} | {bound} | {since} | {beyond} |"


PAGE = """\
# Torture

`make torture` strikes real workers, Redis and Postgres with random faults. It exits with an error if any
[promise](#the-promises) is broken. One such run wrote this page:

{summary}
## The setup

The run had {count} schedules, drawn from seed {seed}. Each schedule draws four of the faults below, and two of them
strike at once. Most settings are scaled down, so that a schedule takes seconds:
{settings}.

- **Three workers** have the pools prefork, threads and solo. They are restarted when they exit.
- **The handler of `invoices`** writes in the transaction that advances the cursor.
- **The handler of `parcels`** writes to a file, as if it called an HTTP API with idempotency keys.
- **Producers** write single invoices and bursts, in short and long transactions. Events come once, twice, too early or
  never.
- **Plain SQL** writes records for as many tenants again, and nobody notifies them. Some of its transactions are long;
  some are rolled back, in whole or to a savepoint.
- **Calls of both handlers** are quick, slow, or slower than the runner TTL. Some raise an error or reject records.
- **Other users** write to an adopted table and know nothing of TaskBridge. Each keeps a ledger of its transactions.
- **A proxy** is between Redis and the producers, and another between Redis and one worker. It can go silent or lose
  replies.

With `--servers pgbouncer,sentinel`, workers and producers reach Postgres through PgBouncer in transaction mode, and
Redis is a primary with a replica and three Sentinels. Each of the two adds faults of its own and leaves out those that
cannot be made through it.

Each fault has its own tenants. They have work when it strikes and get no event afterwards, so only the protocol can
resume them.

Every handler first examines its session and its context for something that an earlier call left: settings, the role,
temporary tables, advisory locks, cursors, prepared statements, context variables. Some records make the handler leave
such state behind on purpose.

## The promises

Each of these must hold after each schedule:

| violation | what must hold |
| --- | --- |
| lost | every committed record was delivered in its latest revision |
| doubled | no invoice's revision was delivered twice; a parcel's was repeated at most {extra} times per fault |
| double advance | no two batches of a tenant of `invoices` advanced its cursor from the same position |
| mixed | no batch contains another tenant's record |
| leak | no call finds state of an earlier one |
| rolled back | no handler receives what was rolled back |
| wrong end | `quarantine` contains exactly what the handler rejects or cannot process |
| too many tries | no record is tried more often than the search for it needs, plus {extra} times per fault |
| stuck | everything is handled, and no runner is left. Only the broker's keys have no expiry |
| late | the tenants of each fault resume within its bound |
| died | no ready worker ends because of an error, such as a Redis that refuses writes or a `MemoryError` |
| user failed | no transaction of the other users fails, unless Postgres itself is unavailable |
| user waited | none of their statements takes longer than {waits:g} s, unless a fault strikes Postgres |
| user misled | `lastval()` returns what it would return without TaskBridge |
| never deleted | no row is delivered as deleted unless somebody deleted it |

For "user waited", the promised limit is 50 ms. Other tests measure it, because a busy machine may exceed it by itself.

If the test program itself fails, or has no result within {within:g} minutes, the schedule counts as "harness failed".

## The result

{table}
| column | meaning |
| --- | --- |
| alone | how often the fault struck alone; in the last row, two together. The columns to the right are about these |
| held up | how often its tenants had to wait |
| median, worst | the time from "counted from" to the tenant's next delivery |
| beyond | how often the time exceeded the bound |

In the rows that begin with "a record", one of three records of a tenant does this at every attempt. The time ends when
the whole tenant is done: that record is in quarantine, and the others are handled.

Two waits are not counted: seconds in which fewer than two workers were ready, and the wait for a slot if every slot was
in a call of {long:g} s or more ({longest:g} s at most, and only once). A process that only sleeps measures how long the
machine itself stalls. A recovery is late only if it is beyond its bound by more than that.

{margin:g} s of each bound is for what every recovery needs: a pass of the ticker, a message, a worker that reconnects.
Each attempt at a record has another {look:g} s.

In bounds with "outage / 0.75": waits double, and each is shortened at random by up to a quarter. So the wait in
progress when the outage ends is at most the circuit's first wait plus outage / 0.75.

Two bounds depend on the tenant.

If idle sessions of a process are stopped, and a coroutine of this process blocks its event loop, the time of two
further tries is added.

If cursors are locked, these waits are added to the run budget:

- for every tenant: 1/60 s for each event;
- for a tenant whose cursor is locked: the circuit's first wait;
- for every other tenant: 0.1 s times the number of locked cursors plus two;
- for every other tenant, if more than two cursors are locked: also the duration of the lock and the circuit's first
  wait.

The bound of "two of them at once" is the sum of both bounds, counted from the end of the later fault. It is longer if
one of the faults makes the other one's wait longer. For example, {outage:g} s are added if a server is unavailable
while a record is tried alone, because its back-off doubles once more.

## Repeat a schedule

`python -m verification.torture --schedule SEED` repeats one schedule, with the same faults and the same producers. The
exact moment at which a fault strikes depends on the machine.
"""
