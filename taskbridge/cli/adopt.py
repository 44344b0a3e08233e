"""`taskbridge adopt` and `taskbridge unadopt`: a table of the user's own as a source."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted, uninterrupted
from taskbridge.cli.options import data_dir_option, examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from taskbridge.store import Adopted

__all__ = ["adopt", "unadopt"]

ALL_COLUMNS: Final = "*"
GOES_ON: Final = "Run the command again, with --backfill: it goes on there."
FROM_NOW_ON: Final = (
    "A row that was there before is no record until it changes. The same command with --backfill makes records of "
    "all; with --from-now-on nobody is reminded of it."
)
MISSED: Final = (
    "Changes may have been missed before. The same command with --backfill sends each row once more; with "
    "--from-now-on nobody is reminded of it."
)
STAYS_SO: Final = "rows without a record stay so until they change, and nobody is reminded of a backfill"
TELLS_EVERY: Final = 5.0
"""Seconds between two lines about a backfill where there is no terminal."""


@click.command(
    epilog=examples(
        "taskbridge adopt orders --tenant customer_id --key id",
        "taskbridge adopt shop.lines --tenant customer_id --key order_id --key line --columns status,amount",
        "taskbridge adopt orders --tenant customer_id --key id --print-sql",
        "taskbridge adopt --source orders --backfill",
    ),
)
@click.argument("table", required=False)
@click.option("--tenant", metavar="COLUMN", help="The column whose value is the tenant.")
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="The key's column; again for each of several.")
@click.option("--source", metavar="NAME", help="What the source is called.  [default: the table's name]")
@click.option(
    "--columns",
    metavar="COLUMN,...",
    help="Only changes of these, of tenant and of key count; * for all.  [default: those of before, else all]",
)
@click.option("--backfill", is_flag=True, help="Make records of the rows that are there already.")
@click.option("--again", is_flag=True, help="As --backfill, and make another record of each row that has one.")
@click.option(
    "--from-now-on", is_flag=True, help="Rows that are there stay without records; nobody is reminded of a backfill."
)
@click.option("--print-sql", is_flag=True, help="Print the statements, for a migration of yours, and run none.")
@data_dir_option
def adopt(
    table: str | None,
    tenant: str | None,
    keys: tuple[str, ...],
    source: str | None,
    columns: str | None,
    backfill: bool,
    again: bool,
    from_now_on: bool,
    print_sql: bool,
    data_dir: Path,
) -> None:
    """Make TABLE, a table of yours, a source: from now on each change of a row is a record of its tenant.

    Triggers write the records, in the transaction that changes the row, whoever it is. TABLE is written as in SQL,
    with its schema and quotation marks where it needs them; columns are written as they are. The key has to be unique,
    alone or together with the tenant. The table stays as it is.

    Without TABLE it is about the table that is adopted as --source already, such as by a migration: for its backfill.

    To run it again changes nothing, unless --columns or the table have changed; --backfill goes on where it was
    stopped.

    `doctor` and `status` tell of a table with rows whose backfill has not come to its end, until it has, or until
    --from-now-on was given.

    Where the table was given up meanwhile, nobody saw what changed: --backfill makes another record of each row, and of
    each row that is gone. --again does so at any time, as after a trigger was off. Each pipeline then gets these rows
    once more, with other idempotency keys. Rows whose records were pruned before the first backfill also come once
    more. A backfill that is done writes no record again.

    Exit status: 0 done, or nothing to do; 1 the table was in use, or a server went away; 2 it cannot be adopted so.
    """
    if (backfill or again) and print_sql:
        raise click.UsageError("--backfill is no statement: leave it out here, and run it after the migration")
    if (backfill or again) and from_now_on:
        raise click.UsageError("--from-now-on is for who wants no backfill: leave out one of the two")
    from taskbridge import store

    if (table is None and source is None) or (table is not None and not (tenant and keys)):
        raise click.UsageError("name a TABLE with --tenant and --key, or the --source of one that is adopted already")

    environment.existing(data_dir)
    engine = _engine()
    found = _described(engine, table, tenant, keys, source, columns, needs_rights=not print_sql, other_keys=again)
    if print_sql:
        _print([*store.adoption_statements(found), *([store.from_now_on_statement(found)] if from_now_on else [])])
        return
    is_new = store.adopt(engine, found)
    due = next((one for one in store.backfills_due(engine) if one.source == found.definition.source), None)
    means = "" if backfill or again else f": {STAYS_SO}" if from_now_on and due else ": nothing to do"
    said = "is adopted: each change from now on is a record" if is_new else f"was adopted before{means}"
    click.echo(f"{found.definition.source}: {found.table.name} {said}")
    if is_new:
        name = found.definition.source
        console.tell(f'A pipeline called {name} reads them; one of another name is declared with source="{name}".')
    if is_new and due and not (backfill or again or from_now_on):
        console.tell(MISSED if due.missed else FROM_NOW_ON)
    if from_now_on:
        store.choose_from_now_on(engine, found)
    if again:
        store.begin_again(engine, found.definition.source)
    if backfill or again:
        _backfill(engine, found, anew=again)


def _described(
    engine: Engine,
    table: str | None,
    tenant: str | None,
    keys: tuple[str, ...],
    source: str | None,
    columns: str | None,
    *,
    needs_rights: bool,
    other_keys: bool,
) -> Adopted:
    """Look at the table; what was not said is as it was adopted before, of which the columns are told."""
    from taskbridge import store

    if table is None:
        table, before = store.adopted_before(engine, source or "")
        tenant, keys = tenant or before.tenant, keys or before.keys
    watched: list[str] | None = None
    if columns is not None:
        watched = [] if columns == ALL_COLUMNS else columns.split(",")
    found = store.adoption(
        engine,
        table,
        tenant or "",
        keys,
        source=source,
        watched=watched,
        needs_rights=needs_rights,
        other_keys=other_keys,
    )
    if columns is None and (kept := found.definition.watched):
        console.tell(f"Only changes of {', '.join(kept)} count, as before; --columns '{ALL_COLUMNS}' lets all count.")
    return found


def _print(statements: Sequence[str]) -> None:
    for statement in statements:
        click.echo(f"{statement};\n")


def _engine() -> Engine:
    from taskbridge import store

    engine = environment.runtime().engine
    store.check_version(engine)
    store.check_schema(engine)
    store.check_cluster(engine)
    return engine


def _backfill(engine: Engine, adopted: Adopted, *, anew: bool) -> None:
    """Write page after page, with a progress bar, or lines if there is no terminal. A signal ends it after a page.

    `anew`: this process let it begin at the first row, so it was not done before, whoever did it since.
    """
    from taskbridge import store
    from taskbridge.common.server_errors import translated_errors

    pages, rows, told = store.backfill(engine, adopted), 0, time.monotonic()
    again = before = False
    with console.progress(of=True, time_left=True) as progress:
        task = progress.add_task("backfill", total=adopted.table.rows or None)
        try:
            while True:
                with uninterrupted(), translated_errors():
                    page = next(pages, None)
                if page is None:
                    break
                rows, again, before = page.rows, page.again, page.before and not anew
                # An estimate that rows have passed says nothing of how many there are.
                total = adopted.table.rows if adopted.table.rows >= max(rows, 1) else None
                progress.tasks[0].total = total
                progress.update(task, completed=rows)
                if progress.disable and time.monotonic() - told > TELLS_EVERY:
                    told = time.monotonic()
                    console.tell(f"{rows:,}{f' of about {total:,}' if total else ''} rows")
        except Interrupted:
            console.tell(f"The backfill was stopped after {rows:,} rows. {GOES_ON}")
            raise
    source = adopted.definition.source
    if before:
        click.echo(
            f"{source}: the backfill of {rows:,} rows was done before: nothing to do, also where records were pruned"
        )
        return
    another = "another record each, with another idempotency key: changes may have been missed before"
    click.echo(f"{source}: {rows:,} rows have {another if again else 'their records'}")


@click.command(epilog=examples("taskbridge unadopt orders", "taskbridge unadopt orders --print-sql"))
@click.argument("source")
@click.option("--print-sql", is_flag=True, help="Print the statements, for a migration of yours, and run none.")
@data_dir_option
def unadopt(source: str, print_sql: bool, data_dir: Path) -> None:
    """Take the triggers off the table that was adopted as SOURCE.

    Changes are no records any more. Records and cursors remain: what was recorded until then is handled as before;
    where the table is dropped, what is pending counts as deleted.

    Exit status: 0; 1 the table was in use, or a server went away; 2 no table was adopted as SOURCE.
    """
    from taskbridge import store

    environment.existing(data_dir)
    engine = _engine()
    if print_sql:
        _print(store.removal_statements(engine, source))
        return
    left = store.unadopt(engine, source)
    click.echo(f"{source}: {left.table} is adopted no more")
    readers = ", ".join(left.pipelines) or "no pipeline"
    click.echo(f"its records remain, with the cursors of {readers}: what is pending is handled as before")
