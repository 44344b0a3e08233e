"""With modules in TASKBRIDGE_PIPELINES only what they declare is served: invoices are another deployment's."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.cli.counts import count
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line

NO_INVOICES = "no pipeline is called 'invoices'; there are: exports. Name the module that declares it"


@pytest.fixture
def exporting(taskbridge: Program) -> Program:
    """A deployment whose one module declares the pipeline `exports`, and no other."""
    (taskbridge.directory / "exporting.py").write_text(
        "from taskbridge import pipeline\n@pipeline('exports')\ndef export(batch): pass\n", encoding="utf-8"
    )
    taskbridge.environment["TASKBRIDGE_PIPELINES"] = "exporting"
    return taskbridge


def test_invoices_are_served_by_the_journal_only_where_no_module_is_named(exporting: Program) -> None:
    assert set(exporting("status", "--json").json["pipelines"]) == {"exports"}
    assert set(exporting("status", "--json", TASKBRIDGE_PIPELINES="").json["pipelines"]) == {"invoices"}


def test_an_event_for_invoices_is_refused(exporting: Program) -> None:
    assert_one_clear_line(exporting("notify", "France", "--pipeline", "invoices"), NO_INVOICES, status=2)
    assert exporting("notify", "France").status == 0


def test_an_import_is_refused_before_it_writes(exporting: Program, a_day: Path, engine: Engine) -> None:
    assert_one_clear_line(exporting("up", "--exit-when-idle", "--import", a_day), NO_INVOICES, status=2)
    assert count(engine) == 0
