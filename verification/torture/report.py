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


def page(results: Sequence[Result], seed: int, margin: float) -> str:
    """Return docs/explanation/torture.md."""
    settings = ",\n".join(f"`TASKBRIDGE_{name.upper()}` {value:g} s" for name, value in SETTINGS.items())
    return PAGE.format(
        summary=summary(results),
        table=table(results, margin),
        seed=seed,
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

`make torture` runs seeded schedules of random faults against real workers, Redis and Postgres, and exits with an error
if any promise below is broken. One such run wrote this page.

{summary}
## The setup

This run had {count} schedules, with seed {seed}. Most settings are scaled down so that a schedule takes seconds:
{settings}.

- **Workers.** Three, with the pools prefork, threads and solo, and a largest batch of between 1 and 50 records. They
  are replaced when a fault kills them. Every other worker listens (`TASKBRIDGE_TAIL_LISTENS`), and some of the plain
  SQL announces its commits.
- **Pipelines.** Two, each with its own source and half of the tenants. The handler of `invoices` writes in the
  transaction that advances the cursor. The handler of `parcels` writes to a file and not through the batch's
  connection, as if it called an HTTP API with idempotency keys. So several runs of `parcels` can advance their cursors
  in one round trip, and runs of both sources share a slot.
- **Other users.** They know nothing of TaskBridge and write to an adopted table: one user all the time, and up to four
  more while its columns change or a backfill runs. Each has its own rows and keeps a ledger of its transactions.
  Postgres looks for deadlocks after 100 ms, so if TaskBridge took part in one, a user would be the victim.
- **Network.** One worker and all producers reach Redis through a proxy that can go silent or lose replies of
  scripts.

Each schedule draws four faults, two of which strike at once. Meanwhile producers write for one to three tenants: single
invoices and bursts, in short and long transactions, with events that come twice, too early or never. As many tenants
again have records written by plain SQL, with an `INSERT` or by `taskbridge.record`, some of them in long transactions
or rolled back in whole or to a savepoint; nobody notifies these tenants. Handlers are quick, slow, or slower than the
runner TTL; some raise once or always, or reject records.

Each fault has its own tenants, which have work when it strikes and get no event afterwards, so only the protocol itself
can resume them.

## The result

{table}
"Alone" counts faults that struck alone, and "held up" those of them whose tenants had to wait. In a row that begins
with "a record", one of three records of a tenant does this at every attempt, and the bound applies to the whole tenant:
the record is in quarantine and the others are handled.

A time runs from the moment in "counted from" to the tenant's next delivery or, in the rows of records, until the whole
tenant is done. Not counted are

- seconds in which fewer than two workers were ready, because a single one may be busy in a slow handler;
- the wait for a slot, if all ready workers had calls of {long:g} s or more in every slot when the run became due:
  {longest:g} s at most, once: the longest handler call that the test's records demand.

A recovery is late only if it exceeds its bound by more than the time for which the machine itself stalled, as measured
by a process that only sleeps.

How the bounds are computed:

- {margin:g} s is for what every recovery needs: a pass of the ticker, a message, a worker that reconnects. Each attempt
  at a record has another {look:g} s.
- If the downstream of all handlers is unavailable, the circuit closes when a probe's call returns, which may be one of
  the longest calls.
- If cursors are locked, runs that began together try each lock for 50 ms, first in one round trip per source and then
  one by one, and do the same when they advance. Locked tenants come last: each attempt holds the slot for up to
  `TASKBRIDGE_STATEMENT_TIMEOUT`, and a back-off follows. If more than two are locked, all slots of a worker may wait
  like this, together with its reserved messages. If three runs fail, the circuit may open.

The bound of "two of them at once" counts from the end of the later fault and is the sum of both bounds, plus

- the turns of the other tenants, if one fault gives many tenants a backlog and the other fault's tenant has one too;
- the next wait, if messages are lost for so long that a republished message is lost as well;
- `TASKBRIDGE_TRANSACTION_TIMEOUT`, if sessions go silent, since the other fault's handler may use one;
- the lock and the circuit's first wait, if cursors are locked;
- {outage:g} s, if a server is unavailable while a record is tried alone and its back-off doubles from the first attempt
  on: the outage adds one more doubling.

## The promises

All of these must hold after each schedule; otherwise it counts as a violation.

| kind | what must hold |
| --- | --- |
| lost | every committed record was delivered in its latest revision |
| doubled | no invoice's revision was delivered twice; a parcel's was repeated at most {extra} times per fault |
| double advance | no two batches of a tenant of `invoices` advanced its cursor from the same position |
| mixed | no batch contains another tenant's record |
| leak | no call finds state of an earlier one in its session, its driver's connection, or its context |
| rolled back | no handler receives what was rolled back, in whole or to a savepoint |
| wrong end | `quarantine` contains exactly what the handler rejects or cannot process |
| too many tries | no record is tried more often than the search for it needs, plus {extra} times per fault |
| stuck | everything is handled, all cursors are past it, no runner is left, and only the broker's keys have no expiry |
| late | the tenants of each fault resume within the bound |
| died | no ready worker ends because of an error, such as a Redis that refuses writes or a `MemoryError` |
| user failed | no transaction of the users of the adopted table fails, unless Postgres itself is unavailable |
| user waited | none of their statements takes longer than {waits:g} s, unless a fault strikes Postgres |
| user misled | `lastval()` returns what it would return without TaskBridge |
| never deleted | no row is delivered as deleted that nobody deleted |

If a part of the torture itself raises an exception, or has no result within {within:g} minutes, the schedule counts as
"harness failed". The run continues with the next schedule and exits with status 1.

Workers that exit are restarted, as by a supervisor: a record may have killed a worker, and a worker that starts while
Postgres or Redis is unavailable says so and exits.

`python -m verification.torture --schedule SEED` repeats the schedule with that seed: the same faults and the same
producers. At which moment of a run a fault strikes depends on the machine.
"""
