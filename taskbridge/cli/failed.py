"""`taskbridge failed`: what failed lately, grouped by the errors' texts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import Number, data_dir_option, examples, json_option
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import iso

__all__ = ["failed"]

NAMED: Final = 3
"""How many tenants a line names."""


@click.command(
    short_help="Show what failed lately, also what is well again.",
    epilog=examples("taskbridge failed", "taskbridge failed --pipeline orders --hours 1 --json"),
)
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option("--hours", type=Number(0.01, 24 * 31), default=24.0, show_default=True, help="So far back.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="At most so many errors.")
@data_dir_option
@json_option
def failed(pipeline: str | None, hours: float, limit: int, data_dir: Path, as_json: bool) -> None:
    """Show which errors runs ended with in the last hours: how many runs of which tenants, and when.

    What failed and is well again is shown too; `taskbridge status --failing` shows who fails now. The figures come from
    the run history: from the last 200 failed runs, and the line below says so where there are more. Times are in UTC.

    Errors whose texts differ in addresses, ids and numbers alone are of one kind, and its last text is shown. Records
    that a handler rejected did not fail: they are counted below.

    Exit status: 0, also where nothing failed.
    """
    from taskbridge.cli.asking import answers_of, clock

    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    if pipeline is not None:
        pipeline = runtime.pipelines[pipeline].name
    found = answers_of(runtime).failed(pipeline, hours=hours, limit=limit)
    if as_json:
        names = ("pipeline", "error", "texts", "runs", "tenants", "sample")
        rows = [
            {name: getattr(one, name) for name in names} | {"first": iso(one.first), "last": iso(one.last)}
            for one in found.groups
        ]
        more = {"more": found.more, "rejected": found.rejected}
        console.emit_json({"hours": hours, "basis": found.basis, **more, "errors": rows})
        return
    terminal = console.stdout()
    for one in found.groups:
        named = ", ".join(map(repr, one.sample[:NAMED])) + (", ..." if one.tenants > NAMED else "")
        runs, tenants = counted(one.runs, "run"), counted(one.tenants, "tenant")
        terminal.print(console.plain(f"{one.pipeline}: {runs} of {tenants} ({named}): {one_line(one.error)}"))
        others = f"; {counted(one.texts - 1, 'other text')} of this kind" if one.texts > 1 else ""
        terminal.print(console.plain(f"  first {clock(one.first)}, last {clock(one.last)}{others}"))
    if found.more:
        terminal.print(f"{counted(found.more, 'more kind')} of error: --limit shows more")
    if found.rejected:
        were = counted(found.rejected, "record was", "records were")
        terminal.print(console.plain(f"{were} rejected in that time; `taskbridge quarantine list` shows why"))
    terminal.print(found.basis)
