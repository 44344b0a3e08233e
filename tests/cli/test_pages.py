"""What the pages show of an answer has the names that the answer has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from taskbridge.store import record
from tests.cli.program import Program

DOCS = Path(__file__).resolve().parents[2] / "docs"


def names(value: Any) -> Any:
    """Return the names of an object, and of those in it, in their order."""
    return [(name, names(one)) for name, one in value.items()] if isinstance(value, dict) else None


def test_the_answer_of_status_is_shown_with_its_names_in_their_order(taskbridge: Program, engine: Engine) -> None:
    page = (DOCS / "reference" / "json.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^<!-- status -->\n```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    record(engine, "invoices", "France", "1", {})
    assert names(json.loads(shown)) == names(taskbridge("status", "--json").json)


def test_the_page_has_the_columns_and_the_states_of_the_view(engine: Engine) -> None:
    page = (DOCS / "reference" / "record-states.md").read_text(encoding="utf-8")
    with engine.connect() as connection:
        columns = connection.exec_driver_sql(
            "SELECT column_name::text, data_type::text FROM information_schema.columns"
            " WHERE (table_schema, table_name) = ('taskbridge', 'record_states') ORDER BY ordinal_position"
        ).all()
        text: str = connection.exec_driver_sql("SELECT pg_get_viewdef('taskbridge.record_states')").scalar_one()
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE) == [tuple(column) for column in columns]
    states = set(re.findall(r"(?:THEN|ELSE) '(\w+)'", text))
    assert set(re.findall(r"^\| `(\w+)` \| (?!text )", page, re.MULTILINE)) == states
