"""`taskbridge adopt` and `taskbridge unadopt`: use one of your own tables as a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.common.texts import counted, spoken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from taskbridge.store import Adopted

__all__ = ["adopt", "unadopt"]

ALL_COLUMNS: Final = "*"


@click.command(
    epilog=examples(
        "taskbridge adopt orders --tenant customer_id --key id",
        "taskbridge adopt shop.lines --tenant customer_id --key order_id --key line --columns status,amount",
        "taskbridge adopt --source orders --backfill",
    ),
)
@click.argument("table", required=False)
@click.option("--tenant", metavar="COLUMN", help="The column with the tenant.")
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="The column with the key. Can be repeated.")
@click.option("--source", metavar="NAME", help="The name of the source.  [default: the table's name]")
@click.option(
    "--columns",
    metavar="COLUMN,...",
    help="Record only changes of these columns, the tenant and the key; * for all.  [default: as before, or all]",
)
@click.option("--backfill", is_flag=True, help="Also record existing rows. Continues an interrupted backfill.")
@click.option("--again", is_flag=True, help="Like --backfill, but also record rows that have a record.")
@click.option("--from-now-on", is_flag=True, help="Skip existing rows, without a reminder to backfill.")
@click.option("--print-sql", is_flag=True, help="Do not run the SQL. Print it for your own migration.")
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
) -> None:
    """Use your own TABLE as a source. Triggers record each change of a row in the same transaction.

    The key must be unique, alone or together with the tenant. To change an adoption, omit TABLE and pass --source.
    """
    if (backfill or again) and (print_sql or from_now_on):
        raise click.UsageError("--backfill and --again cannot be combined with --print-sql or --from-now-on")
    if (table is None and source is None) or (table is not None and not (tenant and keys)):
        raise click.UsageError("give a TABLE with --tenant and --key, or the --source of an adopted table")
    from taskbridge import store

    engine = environment.engine()
    watched = None if columns is None else () if columns == ALL_COLUMNS else columns.split(",")
    found = store.adoption(
        engine, table, tenant, keys, source=source, watched=watched, needs_rights=not print_sql, other_keys=again
    )
    if columns is None and (kept := found.definition.watched):
        console.tell(f"As before, only changes of {', '.join(kept)} are recorded; use --columns '*' for all.")
    if print_sql:
        _print(store.adoption_statements(found, from_now_on=from_now_on))
        return
    name = found.definition.source
    is_new = store.adopt(engine, found, from_now_on=from_now_on)
    due = next((one for one in store.backfills_due(engine) if one.source == name), None)
    result = "is now adopted: each change is recorded" if is_new else "was already adopted"
    console.show(f"{name}: {found.table.name} {result}")
    if is_new:
        console.tell(f'The pipeline {name} reads it; other pipelines can declare source="{name}".')
        if due and not (backfill or again or from_now_on):
            console.tell(f"{due.what}; {spoken(due.remedy)}")
    if again:
        store.begin_again(engine, name)
    if backfill or again:
        _backfill(engine, found, anew=again)


def _print(statements: Sequence[str]) -> None:
    for statement in statements:
        click.echo(f"{statement};\n")


def _backfill(engine: Engine, adopted: Adopted, *, anew: bool) -> None:
    """Backfill page by page; a signal stops it after a page.

    `anew`: this process started it at the first row, so it was not complete before.
    """
    from taskbridge import store

    rows, again, is_complete = 0, False, False
    with console.terminal(stderr=True).status("backfilling") as status:
        try:
            for page in interrupts.steps(store.backfill(engine, adopted)):
                rows, again, is_complete = page.rows, page.again, page.before and not anew
                status.update(f"backfilling: {rows:,} of about {adopted.table.rows:,} rows")
        except Interrupted:
            console.tell(f"The backfill was stopped after {rows:,} rows. Run it again with --backfill to continue.")
            raise
    source = adopted.definition.source
    if is_complete:
        console.show(f"{source}: the backfill of {counted(rows, 'row')} was already complete")
        return
    result = " again, with new idempotency keys, because changes may have been missed before" if again else ""
    console.show(f"{source}: {counted(rows, 'row was', 'rows were')} recorded{result}")


@click.command(epilog=examples("taskbridge unadopt orders", "taskbridge unadopt orders --print-sql"))
@click.argument("source")
@click.option("--print-sql", is_flag=True, help="Do not run the SQL. Print it for your own migration.")
@data_dir_option
def unadopt(source: str, print_sql: bool) -> None:
    """Remove the triggers of the table that is adopted as SOURCE. Its changes are no longer recorded.

    Records and cursors are kept. Pending records are still handled.
    """
    from taskbridge import store

    engine = environment.engine()
    if print_sql:
        _print(store.removal_statements(engine, source))
        return
    left = store.unadopt(engine, source)
    kept = f" and the cursors of {', '.join(left.pipelines)}" if left.pipelines else ""
    console.show(f"{source}: {left.table} is no longer adopted; its records{kept} are kept")
