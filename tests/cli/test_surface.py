"""What programs outside the project rely on is the same as in `surface.json`, or was changed on purpose.

After such a change: `TASKBRIDGE_TEST_WRITE_SURFACE=1 pytest tests/cli/test_surface.py`, and look at the difference.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
from sqlalchemy import Engine

import taskbridge as api
from taskbridge import errors
from taskbridge.cli.main import cli
from taskbridge.gate import Keys
from taskbridge.store import record
from taskbridge.testing import plugin
from tests.cli.program import ROOT, Program
from tests.cli.scenes import HEADER, line, write

RECORDED: Final = Path(__file__).with_name("surface.json")


def signatures(value: Any) -> Any:
    """Return a callable's signature; of a class, also those of its public members."""
    if not inspect.isclass(value):
        return str(inspect.signature(value)) if callable(value) else type(value).__name__
    members = {
        name: member
        for base in value.__mro__
        if base.__module__.startswith("taskbridge.")
        for name, member in vars(base).items()
        if not name.startswith("_")
    }
    methods = {name: str(inspect.signature(one)) for name, one in sorted(members.items()) if inspect.isfunction(one)}
    return {"()": str(inspect.signature(value)), "attributes": " ".join(sorted(members.keys() - methods)), **methods}


def options(commands: Mapping[str, click.Command], path: str = "") -> dict[str, str]:
    """Return the arguments and options of each command, and of those below it."""
    found: dict[str, str] = {}
    for name, command in commands.items():
        below = getattr(command, "commands", {})
        found |= (
            options(below, f"{path}{name} ")
            if below
            else {path + name: " ".join(option for parameter in command.params for option in parameter.opts)}
        )
    return found


def shape(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return which keys a JSON object has. Below `tenants` and `pipelines` keys are names: one is shown."""
    inner = {key: one for key, one in value.items() if isinstance(one, Mapping)}
    found: dict[str, Any] = {"values": " ".join(sorted(value.keys() - inner.keys()))}
    for key, one in inner.items():
        found[key] = {"*": shape(next(iter(one.values())))} if key in ("tenants", "pipelines") else shape(one)
    return found


@pytest.mark.e2e
def test_nothing_that_others_rely_on_has_changed_unnoticed(taskbridge: Program) -> None:
    file = write(taskbridge.directory / "invoices.csv", [HEADER, line("1")])
    report = taskbridge("up", "--import", file, "--exit-when-idle", "--json").json
    found = {
        "python": {name: signatures(getattr(api, name)) for name in api.__all__ if name != "app"},
        "errors": {name: getattr(errors, name).exit_status for name in errors.__all__},
        "fixtures": sorted(name for name in vars(plugin) if name.startswith("taskbridge_")),
        "tasks": sorted(name for name in api.app.tasks if name.startswith("taskbridge.")),
        "keys": {"lease": Keys().lease("invoices", "acme"), "queues": list(Keys().queues)},
        "commands": options(cli.commands),
        "up --json": shape(report),
    }
    text = json.dumps(found, indent=2) + "\n"
    if os.environ.get("TASKBRIDGE_TEST_WRITE_SURFACE"):
        RECORDED.write_text(text)
    assert json.loads(text) == json.loads(RECORDED.read_text())


def names(value: Any) -> Any:
    """Return the names of an object, and of those in it, in their order."""
    return [(name, names(one)) for name, one in value.items()] if isinstance(value, dict) else None


def test_the_answer_of_status_is_shown_with_its_names_in_their_order(taskbridge: Program, engine: Engine) -> None:
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^<!-- status -->\n```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    record(engine, "invoices", "France", "1", {})
    assert names(json.loads(shown)) == names(taskbridge("status", "--json").json)


def test_the_page_has_the_columns_and_the_states_of_the_view(engine: Engine) -> None:
    page = (ROOT / "docs" / "reference" / "record-states.md").read_text(encoding="utf-8")
    with engine.connect() as connection:
        columns = connection.exec_driver_sql(
            "SELECT column_name::text, data_type::text FROM information_schema.columns"
            " WHERE (table_schema, table_name) = ('taskbridge', 'record_states') ORDER BY ordinal_position"
        ).all()
        text: str = connection.exec_driver_sql("SELECT pg_get_viewdef('taskbridge.record_states')").scalar_one()
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE) == [tuple(column) for column in columns]
    states = set(re.findall(r"(?:THEN|ELSE) '(\w+)'", text))
    assert set(re.findall(r"^\| `(\w+)` \| (?!text )", page, re.MULTILINE)) == states
