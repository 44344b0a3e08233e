"""`taskbridge where`: a record, wherever it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, stored_text
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, iso
from taskbridge.errors import InvalidName

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.observing.shapes import Story
    from taskbridge.process.light_runtime import LightRuntime

__all__ = ["where"]

SHOWN_STORIES: Final = 10
"""Of so many records the steps are shown."""


@click.command(
    short_help="Show where a record is, and what became of it.",
    epilog=examples("taskbridge where 536365", "taskbridge where 7 --source orders --tenant 3 --json"),
)
@click.argument("key", type=stored_text)
@click.option("--source", metavar="NAME", help="Only in this source.  [default: all]")
@click.option("--tenant", help="Only of this tenant.  [default: all]")
@data_dir_option
@json_option
def where(key: str, source: str | None, tenant: str | None, data_dir: Path, as_json: bool) -> None:
    """Show the records with KEY: of which source and tenant, and what became of each in each pipeline that reads it.

    It was received and recorded; its event started a run, or a runner that was there absorbed it; a run read it; it was
    handled, rejected, or put into quarantine. Each step has a time, in UTC, and its run. When the event came is not
    stored: the times of these steps are those of the record and of its runs. The runs are known as far as the run
    history goes back, in pipelines that this shell declares.

    The key of several columns is a JSON array, as `["eu", "211"]`; it is found with other spaces too.

    `pending` is what the tenant's next runs take, `taskbridge why TENANT` says when. Up to 100 records are shown, and
    the steps of the first 10. Without --source and --tenant all records are looked through.

    Exit status: 0; 1 where there is none.
    """
    from taskbridge.store import where_is

    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    found = where_is(runtime.database, key, source, tenant)
    stories = _stories(runtime, found)
    if as_json:
        rows = [
            {name: _plain(one[name]) for name in one} | _story_as_json(story, _not_here(runtime, one))
            for one, story in zip(found, stories, strict=True)
        ]
        console.emit_json({"key": key, "records": rows})
    else:
        terminal = console.stdout()
        for one, story in zip(found, stories, strict=True):
            terminal.print(console.plain(_sentence(one, is_here=_not_here(runtime, one) is None)))
            _show(terminal, story)
            if said := _not_here(runtime, one):
                terminal.print(console.plain(f"  {said}"))
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


def _stories(runtime: LightRuntime, found: list[dict[str, Any]]) -> list[Story | None]:
    """Return what became of each record; None where no pipeline reads it that is declared here, and after the first."""
    from taskbridge.cli.asking import answers_of

    answers, names = answers_of(runtime), runtime.pipelines.names()
    stories = []
    for number, one in enumerate(found):
        told = number < SHOWN_STORIES and one["pipeline"] in names
        place = (one["source"], one["tenant"], one["key"], one["pipeline"])
        stories.append(answers.story(*place) if told else None)
    return stories


def _not_here(runtime: LightRuntime, one: dict[str, Any]) -> str | None:
    """Say that no steps are told since this process does not declare the pipeline; None: it does."""
    if one["pipeline"] is None or one["pipeline"] in runtime.pipelines.names():
        return None
    return (
        f"this process does not declare {one['pipeline']}, so no steps are told: name the module that declares it in "
        "TASKBRIDGE_PIPELINES, as the workers do"
    )


def _story_as_json(story: Story | None, note: str | None) -> dict[str, Any]:
    if story is None:
        return {"steps": [], "note": note}
    steps = [
        {"at": iso(step.at), "what": step.what, "sentence": step.sentence, "token": step.token} for step in story.steps
    ]
    return {"steps": steps, "note": story.note}


def _show(terminal: Console | console.Pipe, story: Story | None) -> None:
    from taskbridge.cli.asking import clock

    for step in story.steps if story else ():
        terminal.print(console.plain(f"  {clock(step.at)}  {step.sentence}"))
    if story is not None and story.note:
        terminal.print(f"  {story.note}")


def _pipelines_of(runtime: LightRuntime, name: str) -> list[str]:
    """Return the pipelines that have a tenant of this name."""
    from redis import RedisError

    from taskbridge.cli.tenants import view

    try:
        check_tenant(name)
        return [pipeline for pipeline in runtime.pipelines.names() if view(runtime, pipeline, name)]
    except (InvalidName, RedisError):
        return []


def _plain(value: Any) -> Any:
    return iso(value) if hasattr(value, "isoformat") else value


def _sentence(one: dict[str, Any], *, is_here: bool) -> str:
    what = f"{one['source']}, tenant {one['tenant']!r}, revision {one['revision']}, written {ago(one['changed_at'])}"
    if one["deleted"]:
        what += ", deleted"
    if one["unmatched"]:
        return f"{one['source']}, written {ago(one['changed_at'])}: unmatched: {one_line(one['unmatched'])}"
    if one["pipeline"] is None:
        return f"{what}: no pipeline reads this source"
    stands = f"{what}: {one['state']} in {one['pipeline']}"
    if one["reason"]:
        return f"{stands} after {counted(one['attempts'], 'attempt')}: {one_line(one['reason'])}"
    if one["state"] == "pending":
        if one["failures"]:
            times = counted(one["failures"], "time")
            stands += f"; its tenant failed {times} in a row, last: {one_line(one['last_error'] or '')}"
        # Where the pipeline is not declared, `why` knows nothing of it.
        return (
            stands
            if not is_here
            else f"{stands}; `{shlex.join(('taskbridge', 'why', one['tenant']))}` says when it is taken"
        )
    return stands
