"""What does not go on is told by `status` and `doctor`; stored texts cannot pretend to be more lines of theirs."""

from __future__ import annotations

from sqlalchemy import Engine

from taskbridge.store import record_invoice
from tests.cli.program import Program
from tests.quarantined import put_in_quarantine

FORGED = "boom\nFrance  idle  0 pending\r\x1b[2Jgone\u2028Spain"


def fail(engine: Engine, error: str, tenant: str = "acme") -> None:
    record_invoice(engine, tenant, "1", {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failing_since) "
            "VALUES ('invoices', %s, 3, %s, now())",
            (tenant, error),
        )


def test_an_error_text_forges_no_line_and_controls_no_terminal(taskbridge: Program, engine: Engine) -> None:
    fail(engine, FORGED)
    put_in_quarantine(engine, "acme", "1", reason=FORGED)
    for command in (["status"], ["inspect", "acme"], ["doctor"], ["quarantine", "list"]):
        ended = taskbridge(*command)
        assert not [line for line in ended.stdout.splitlines() if line.startswith(("France", "gone", "Spain"))]
        assert "\x1b" not in ended.stdout
        assert command == ["doctor"] or r"boom\nFrance" in ended.stdout or "boom France" in ended.stdout


def test_a_shell_that_does_not_declare_the_pipelines_says_so_and_not_that_all_is_well(
    taskbridge: Program, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')")
        for tenant in ("a", "b"):
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) VALUES ('orders', %s)", (tenant,)
            )

    said = "pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: orders (2 tenants)"
    assert said in taskbridge("status").stdout
    ended = taskbridge("quarantine", "list")
    assert (ended.status, ended.stderr.count(said), ended.stdout.count(said)) == (0, 1, 0)
    ended = taskbridge("quarantine", "list", "--pipeline", "invoices")
    assert said not in ended.stderr + ended.stdout, "what was asked for was looked at"
    assert said in taskbridge("inspect", "a").stderr
    texts = [one["text"] for one in taskbridge("doctor", "--json").json["findings"] if one["level"] == "warning"]
    assert said in texts
    (taskbridge.directory / "handlers.py").write_text(
        "from taskbridge import pipeline\n@pipeline('orders')\ndef handle(batch): pass\n", encoding="utf-8"
    )
    ended = taskbridge("status", TASKBRIDGE_PIPELINES="handlers")
    assert "are left out" not in ended.stdout + ended.stderr
