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
        f"{exits} workers ended by themselves, {refusals} could not start because a server was away or full.\n"
        f"{_beyond(stalled)}\n"
    )


def _beyond(stalled: Sequence[Recovery]) -> str:
    if not stalled:
        return "No recovery was beyond its bound."
    most = max(one.recovered - one.bound for one in stalled if one.recovered is not None)
    return (
        f"{len(stalled)} recoveries were beyond their bound, by at most {most:.1f} s, and not by more than the machine "
        "stood still."
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

`make torture` runs seeded schedules of random faults against real workers, Redis and Postgres, and ends with a status
other than 0 if anything below does not hold. This page was written by one such run.

{summary}
Run: {count} schedules, seed {seed}. Settings, most of them scaled down so that a schedule takes seconds:
{settings}.
Workers: three, with the pools prefork, threads and solo and batches of up to 1 to 50 records, replaced as the faults
strike them. Every other one listens (`TASKBRIDGE_TAIL_LISTENS`); a part of the plain SQL announces its commits.
Pipelines: two, each with a source of its own; every other tenant is of the other one. The handler of `invoices` writes
in the transaction that advances the cursor. That of `parcels` uses no connection of the batch, as if it called an HTTP
API with idempotency keys, and what it has done is in a file. So runs that began together advance their cursors in one
exchange, and runs of both sources share a slot.

Besides, users who know nothing of TaskBridge work on a table that is adopted, one at all times and up to four more
while its columns change or a backfill runs. Each has rows of its own and keeps a ledger of its transactions. Postgres
looks for deadlocks after 100 ms, so that a user would be the victim of any that TaskBridge takes part in. One worker
and all producers reach Redis by a proxy, which can fall silent on its connections or lose the replies of scripts.

A schedule draws four faults; two of them strike at once. Meanwhile producers write for one to three tenants: single
invoices and bursts, short transactions and long ones, some notified twice, too early or never. As many tenants have
records that are written by plain SQL, with an `INSERT` or by `taskbridge.record`, also in long transactions, with
savepoints or whole transactions that are rolled back: of these nobody ever notifies. Handlers are quick,
slow, longer than the runner TTL, raise once or always, reject. Each fault has tenants of its own that have work when it
strikes and get no event afterwards, so that only the protocol's own means bring them back. "Alone" counts the faults
that struck alone, "held up" those of them whose tenants had to wait. A row that begins with "a record" is about one
record among three of its tenant that does this at every try; its bound is for the whole tenant: the record in
quarantine, the others handled.

{table}
Times are from the moment in the column "counted from" to the tenant's next delivery, or for a record to the end of
its tenant. Seconds in which fewer than two workers were ready do not count: one alone may be in a slow handler. Where
all that were ready had calls of {long:g} s and more in each slot when the tenant's run became due, the time until the
first slot came free does not count either, once and up to {longest:g} s, which is the longest call that producers ask
for. In the bounds, {margin:g} s is for what every recovery needs: a look of the ticker, a message, a worker that
reconnects. Each try of a record has {look:g} s of its own for it. Where what all handlers call is down, the circuit
closes when a probe's call is over, and that may be one of the longest.
Where cursors are locked, runs that began together try each lock for 50 ms: in one exchange for each source, then one by
one, and so for their advances. Who is locked comes last, and waits in the slot for up to `TASKBRIDGE_STATEMENT_TIMEOUT`
for each try, then for its back-off. Where more than two are locked, all slots of a worker may wait like this, and so do
the messages that the worker has; and where three runs fail, the circuit may open.
A recovery is late if it is beyond its bound by more than the machine itself stood still meanwhile: a process that only
sleeps notes by how much its sleeps are too long.
"Two of them at once" counts from the end of the later, and adds both bounds. Where one fault gives many others a
backlog, a tenant of the second one that has a backlog too waits for its turn behind them: their turns are added. Where
messages get lost for so long that one which was published again is lost too, the next wait for it is added. Where
sessions fall silent, one may be in the handler of another fault's tenant: `TASKBRIDGE_TRANSACTION_TIMEOUT` is added.
Where cursors are locked, the lock and the circuit's first wait are added.
Where a server is away while a record is searched whose back-off doubles from the first try on, it doubles once more:
{outage:g} s are added.

After each schedule these hold, or it is a violation:

| kind | what must hold |
| --- | --- |
| lost | every committed record was delivered in its latest revision |
| doubled | no revision of an invoice was delivered twice, one of a parcel again at most {extra} times for each fault |
| double advance | no two batches of a tenant of `invoices` advanced from one position of its cursor |
| mixed | no batch holds another tenant's record |
| leak | no call finds state of an earlier one: in its session, its driver's connection, or its context |
| rolled back | no handler is given what was rolled back, in whole or to a savepoint |
| wrong end | `quarantine` holds what its handler rejects or cannot take, and nothing else |
| too many tries | no record is tried more often than its search takes, and {extra} times more for each fault |
| stuck | all is handled, all cursors are past it, no runner is left, no key that never expires but the broker's own |
| late | each fault's tenants go on within the bound |
| died | no worker that was ready is ended by an error, such as a Redis that refuses writes or a `MemoryError` |
| user failed | no transaction of the users of the adopted table fails, but where Postgres itself is away |
| user waited | no statement of theirs takes longer than {waits:g} s, but where Postgres is struck |
| user misled | `lastval()` returns what it returns without TaskBridge |
| never deleted | no deletion of a row is delivered that nobody deleted |

A schedule that comes to no verdict, because a part of the torture itself raises an exception or gives no result within
{within:g} minutes, counts as "harness failed"; the run goes on with the next one and ends with status 1.

Workers that end by themselves are started again, as a supervisor would: a record may have killed one, and a worker that
starts while Postgres or Redis is away says so and ends.

What is repeatable is the drawing: `python -m verification.torture --schedule SEED` runs the schedule with that seed
again, with the same faults and the same producers; which moment of a run a fault meets is up to the machine.
"""
