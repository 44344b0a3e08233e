"""What `taskbridge up` shows while it runs, and that this costs no more where there are many tenants."""

from __future__ import annotations

import io
from typing import Any

import psycopg
import pytest
from rich.console import Console

from taskbridge.cli import console, monitor
from taskbridge.cli.monitor import Monitor
from taskbridge.cli.tenants import busiest, totals
from taskbridge.process.runtime import Runtime, runtime_of
from tests.deployment import Deployment

TENANTS = 2_000
LINES = 24


@pytest.fixture
def crowded(deployment: Deployment) -> Runtime:
    """A runtime with 2,000 tenants that have a pending record each; the last three have runners, and one failed."""
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'tenant-' || lpad(n::text, 4, '0'), '1', '{}' FROM generate_series(1, %s) n",
            (TENANTS,),
        )
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error) "
            "VALUES ('invoices', 'tenant-1000', 1, 'ValueError: boom')"
        )
    for number in (1998, 1999, 2000):
        deployment.notify_event.delay(f"tenant-{number}")
    return runtime_of(deployment.app)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tenants each statement from now on asks for."""
    found: list[int] = []
    execute = psycopg.Cursor.execute

    def note(cursor: Any, statement: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(parameters, dict):
            found.append(len(parameters.get("tenants", ())))
            found.append(parameters.get("limit", 0))
        return execute(cursor, statement, parameters, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", note)
    return found


def test_the_table_has_the_tenants_at_work_first_and_reads_no_more_than_it_shows(
    crowded: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(width=100, height=LINES, force_terminal=True, record=True)
    found = asked(monkeypatch)
    whole = totals(crowded, "invoices")
    terminal.print(monitor._table(terminal, crowded, [whole]))
    lines = terminal.export_text().splitlines()
    assert 5 < len(lines) < LINES
    assert [line.split()[0] for line in lines if "tenant-" in line][:4] == [
        "tenant-1998",
        "tenant-1999",
        "tenant-2000",
        "tenant-0001",
    ]
    assert "and more tenants" in lines[-2]
    assert lines[-1].strip() == "invoices: 3 runners, 3 or more pending, 0 in quarantine, 1 tenant failing"
    assert max(found) <= LINES


def test_where_there_is_no_terminal_a_line_has_the_totals_and_who_fails(
    crowded: Runtime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(monkeypatch)
    Monitor(crowded, workers=None, ours=False)._look()  # type: ignore[arg-type]
    (shown,) = capsys.readouterr().err.splitlines()
    # Other tests may have declared more pipelines in this process.
    assert "invoices: 3 runners, 3 or more pending, 0 in quarantine, 1 tenant failing; " in shown
    assert "; invoices: 1 tenant fails; tenant-1000: ValueError: boom" in shown
    assert max(found) <= LINES


def test_the_live_table_has_who_fails_below_it(crowded: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=100, height=LINES, force_terminal=True, file=io.StringIO(), record=True)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    shown = Monitor(crowded, workers=None, ours=False)  # type: ignore[arg-type]
    with shown.shown():
        shown._look()
    assert "invoices: 1 tenant fails; tenant-1000: ValueError: boom" in terminal.export_text()


def test_few_tenants_are_all_shown_those_without_a_record_too(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    deployment.notify_event.delay("acme")
    tenants, more = busiest(runtime, totals(runtime, "invoices"), 5)
    assert ([one.tenant for one in tenants], more) == (["acme"], False)
