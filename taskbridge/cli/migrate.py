"""`taskbridge migrate`: migrate the schema, or adapt a restored database to its new cluster."""

from __future__ import annotations

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.common.texts import counted
from taskbridge.errors import UsageError
from taskbridge.settings import redis_variable

__all__ = ["migrate"]


@click.command(epilog=examples("taskbridge migrate", "taskbridge migrate --rebase --yes"))
@click.option(
    "--to",
    "revision",
    default="head",
    metavar="REVISION",
    help='A revision such as 0001, "head" for the newest, or "base" to drop all tables.',
)
@click.option(
    "--rebase",
    is_flag=True,
    help="Adapt to a new cluster after a restore or pg_upgrade. Stop all workers and producers first.",
)
@click.option("--yes", is_flag=True, help="Confirm --to base or --rebase.")
@data_dir_option
def migrate(revision: str, rebase: bool, yes: bool) -> None:
    """Migrate the schema to the newest revision.

    With --rebase, adapt a database that was restored into another cluster. Then
    handled records stay handled and pending records stay pending. Records that were handled after the dump may be
    pending again, or missing.
    """
    if rebase and revision != "head":
        raise click.UsageError("--rebase and --to cannot be combined")
    if rebase:
        with environment.kept():
            _rebase(yes=yes)
        return
    from alembic.util import CommandError

    from taskbridge import store
    from taskbridge.common.server_errors import FOREIGN_CLUSTER
    from taskbridge.store.schema import head

    if revision == "base" and not yes:
        raise click.UsageError("--to base drops all tables and their data: add --yes to confirm")
    environment.existing()
    try:
        engine = environment.runtime().engine
        store.check_version(engine)
        before, after = store.migrate(engine, revision)
    except CommandError as error:
        raise UsageError(f"there is no revision {revision!r} ({error}); the newest is {head()}") from error
    result = f" -> {after or 'none'}" if before != after else ": nothing to do"
    console.show(f"schema {before or 'none'}{result}")
    if after == head() and not store.in_its_cluster(engine):
        console.complain(f"one more step: {FOREIGN_CLUSTER}")


def _rebase(*, yes: bool) -> None:
    from taskbridge import store
    from taskbridge.store.rebasing import rebase

    engine = environment.runtime().engine
    store.check_version(engine)
    store.check_schema(engine)
    if not yes and not store.in_its_cluster(engine):
        raise click.UsageError(
            "--rebase rewrites cursors and transaction ids: add --yes once all workers and producers are stopped"
        )
    with console.terminal(stderr=True).status("rebasing") as status:
        done = rebase(engine, begins=status.update)
    if done is None:
        console.show("the database is in its own cluster: nothing to do")
        return
    console.show(f"rebased {counted(done.cursors, 'cursor')} and {counted(done.rows, 'row')}")
    for pipeline, count in done.quarantined.items():
        console.show(f"{pipeline}: {counted(count, 'pending record')} will be handled first")
    # The gate still belongs to the previous cluster.
    runtime = environment.runtime()
    errors = runtime.release_gate()
    for redis, error in errors.items():
        console.complain(
            f"{error}. Its gate still belongs to the previous cluster: when it is available "
            f"again, run `redis-cli DEL {runtime.keys.owner}` on the server of {redis_variable(redis)}"
        )
    if errors:
        raise click.exceptions.Exit(1)
    console.tell("You can start workers and producers again.")
