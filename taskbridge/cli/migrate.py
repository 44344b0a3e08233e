"""`taskbridge migrate`: the database's schema."""

from __future__ import annotations

from pathlib import Path

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.errors import SchemaMismatch, UsageError

__all__ = ["migrate"]


@click.command(
    epilog=examples("taskbridge migrate", "taskbridge migrate --to base --yes"),
)
@click.option(
    "--to",
    "revision",
    default="head",
    show_default=True,
    metavar="REVISION",
    help='A revision such as 0001, "head" for the newest, or "base" to drop all tables.',
)
@click.option("--yes", is_flag=True, help="With --to base: drop the tables and all that they hold.")
@data_dir_option
def migrate(revision: str, yes: bool, data_dir: Path) -> None:
    """Bring the schema up to date, and print what it was and what it is."""
    from alembic.util import CommandError

    from taskbridge import store
    from taskbridge.common.server_errors import FOREIGN_CLUSTER
    from taskbridge.store.schema import head

    if revision == "base" and not yes:
        raise click.UsageError("--to base drops all tables and what they hold: add --yes if that is what you want")
    environment.existing(data_dir)
    try:
        engine = environment.runtime().engine
        store.check_version(engine)
        before, after = store.migrate(engine, revision)
        foreign = after == head() and not store.in_its_cluster(engine)
    except CommandError as error:
        raise UsageError(f"there is no schema {revision!r} ({error}); the newest is {head()}") from error
    if before == after:
        click.echo(f"schema {after or 'none'}: nothing to do")
    else:
        click.echo(f"schema {before or 'none'} -> {after or 'none'}")
    if foreign:
        console.complain(f"what comes next: {FOREIGN_CLUSTER}")
    if after != revision and revision not in ("head", "base"):
        raise SchemaMismatch(f"the database stays at {after}: only `--to base` goes back, and it drops the tables")
