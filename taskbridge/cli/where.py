"""`taskbridge where`: a record, wherever it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, stored_text
from taskbridge.cli.times import ago, iso
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import one_line
from taskbridge.errors import InvalidName

if TYPE_CHECKING:
    from taskbridge.process.light_runtime import LightRuntime

__all__ = ["where"]


@click.command(
    short_help="Show where a record is.",
    epilog=examples("taskbridge where 536365", "taskbridge where 7 --source orders --tenant 3 --json"),
)
@click.argument("key", type=stored_text)
@click.option("--source", metavar="NAME", help="Only in this source.  [default: all]")
@click.option("--tenant", help="Only of this tenant.  [default: all]")
@data_dir_option
@json_option
def where(key: str, source: str | None, tenant: str | None, data_dir: Path, as_json: bool) -> None:
    """Show the records with KEY: of which source and tenant, and how each pipeline that reads them stands with it.

    `pending` is what the tenant's next runs take, `taskbridge status TENANT` says when. Up to 100 records are shown.
    Without --source and --tenant all records are looked through.

    Exit status: 0; 1 where there is none.
    """
    from taskbridge.store import where_is

    runtime = environment.session(data_dir, environment.light_runtime)
    found = where_is(runtime.database, key, source, tenant)
    if as_json:
        console.emit_json({"key": key, "records": [{name: _plain(one[name]) for name in one} for one in found]})
    else:
        for one in found:
            click.echo(console.plain(_sentence(one)))
    if not found:
        of = _pipelines_of(runtime, key) if tenant is None else []
        if of:
            console.complain(
                f"no record has the key {key!r}, but a tenant of {', '.join(of)} is called so: "
                f"`{shlex.join(('taskbridge', 'status', key))}` shows how it stands"
            )
        else:
            console.complain(f"no record has the key {key!r}: it was not written so, or it was pruned")
        raise click.exceptions.Exit(1)


def _pipelines_of(runtime: LightRuntime, name: str) -> list[str]:
    """Return the pipelines that have a tenant of this name."""
    from taskbridge.cli.tenants import view

    try:
        check_tenant(name)
    except InvalidName:
        return []
    return [pipeline for pipeline in runtime.pipelines.names() if view(runtime, pipeline, name)]


def _plain(value: Any) -> Any:
    return iso(value) if hasattr(value, "isoformat") else value


def _sentence(one: dict[str, Any]) -> str:
    what = f"{one['source']}, tenant {one['tenant']!r}, revision {one['revision']}, written {ago(one['changed_at'])}"
    if one["deleted"]:
        what += ", deleted"
    if one["unmatched"]:
        return f"{one['source']}, written {ago(one['changed_at'])}: unmatched: {one_line(one['unmatched'])}"
    if one["pipeline"] is None:
        return f"{what}: no pipeline reads this source"
    stands = f"{what}: {one['state']} in {one['pipeline']}"
    if one["reason"]:
        return f"{stands} after {one['attempts']} attempts: {one_line(one['reason'])}"
    if one["state"] == "pending" and one["failures"]:
        return (
            f"{stands}; its tenant failed {one['failures']} times in a row, last: {one_line(one['last_error'] or '')}"
        )
    return stands
