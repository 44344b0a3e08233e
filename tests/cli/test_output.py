"""What is printed can be read by programs and does no harm to a terminal, whatever a tenant is called."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.settings import Settings
from taskbridge.store import record
from tests.cli.program import MAIN, Program
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run

MARKUP = "[red]shop[/red] :smile:"
TURNED = "a\u202eb\u200bc"
LONG = "x" * 200


@pytest.fixture
def odd_tenants(taskbridge: Program, engine: Engine) -> Program:
    """Servers with records of tenants whose names could do harm."""
    for tenant in (MARKUP, TURNED, LONG):
        record(engine, "invoices", tenant, "1", {})
    return taskbridge


def test_a_table_in_a_pipe_has_no_control_sequences_and_nothing_is_cut(odd_tenants: Program) -> None:
    shown = odd_tenants("status")
    assert shown.status == 0
    assert "\x1b" not in shown.stdout
    rows = {row.partition("  ")[0].rstrip() for row in shown.stdout.splitlines()}
    assert {MARKUP, "a\\u202eb\\u200bc", LONG} <= rows
    as_json = odd_tenants("status", "--json")
    assert set(as_json.json["pipelines"]["invoices"]["tenants"]) == {MARKUP, TURNED, LONG}
    assert as_json.stdout.isascii()
    assert as_json.stdout.count("\n") == 1


def test_a_terminal_is_sent_names_as_text_and_colours_only_if_wanted(odd_tenants: Program) -> None:
    coloured = on_a_terminal(odd_tenants, "status")
    assert "\x1b[" in coloured
    plain = on_a_terminal(odd_tenants, "status", NO_COLOR="1")
    assert "\x1b[3" not in plain
    for sent in (coloured, plain):
        assert MARKUP in sent
        assert "a\\u202eb\\u200bc" in sent
        assert all(len(row) <= 400 for row in sent.splitlines())


def test_a_narrow_terminal_shows_the_beginning_of_each_name(odd_tenants: Program) -> None:
    rows = on_a_terminal(odd_tenants, "status", COLUMNS="40", NO_COLOR="1").splitlines()
    for name in (MARKUP, "a\\u202eb", LONG):
        assert any(row.startswith(name[:3]) for row in rows), rows


def test_a_reader_that_goes_away_ends_the_command_quietly(odd_tenants: Program) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-c", MAIN, "status"],
            env=odd_tenants.environment,
            cwd=odd_tenants.directory,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == b""


def on_a_terminal(
    program: Program,
    *arguments: str,
    status: int = 0,
    typed: str = "",
    **variables: str,
) -> str:
    """Run a command on a terminal of 120 columns, type `typed`, and return what it sent there."""
    leader, follower = pty.openpty()
    os.write(leader, typed.encode())
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        env={**program.environment, "COLUMNS": "120", **variables},
        cwd=program.directory,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        sent = b""
        while True:
            try:
                sent += os.read(leader, 65536)
            except OSError:  # the last process on the terminal ended
                break
    os.close(leader)
    assert process.returncode == status, sent
    return sent.decode()


def test_a_shell_that_does_not_declare_the_pipelines_says_so_and_not_that_all_is_well(
    taskbridge: Program, engine: Engine
) -> None:
    run(
        engine,
        "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) VALUES ('orders', 'a'), ('orders', 'b')",
    )
    said = "pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: orders"
    assert said in taskbridge("status").stdout
    ended = taskbridge("quarantine", "list")
    assert (ended.status, ended.stderr.count(said), ended.stdout.count(said)) == (0, 1, 0)
    assert said not in taskbridge("quarantine", "list", "--pipeline", "invoices").stderr, "it was looked at"
    assert said in taskbridge("inspect", "a").stderr
    found = taskbridge("doctor", "--json").json["findings"]
    assert [one["level"] for one in found if one["text"] == said] == ["warning"]
    # Nor is it taken for one that is gone, though all its workers have been down for hours.
    run(
        engine,
        "INSERT INTO taskbridge.tails (pipeline, kind, snapshot, stored_at) "
        "VALUES ('orders', 'tail', pg_current_snapshot(), now() - interval '23 hours')",
    )
    assert taskbridge("pipeline", "remove", "orders", "--yes").status == 1
    run(engine, "UPDATE taskbridge.tails SET stored_at = stored_at - interval '1 hour'")
    assert taskbridge("pipeline", "remove", "orders", "--yes", "--json").json["cursors"] == 2


def test_the_worst_come_first_if_asked_for_also_behind_many_others(taskbridge: Program, engine: Engine) -> None:
    # given tenants of which each but the first by name has the most of something
    run(
        engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "
        "SELECT 'invoices', tenant, n, '{}', now() - hours * interval '1 hour' FROM (VALUES ('calm', 1, 1), "
        "('failing', 2, 2), ('late', 1, 5), ('much', 4, 3), ('spoilt', 3, 4)) v (tenant, many, hours) "
        "CROSS JOIN generate_series(1, many) n",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures) VALUES ('invoices', 'failing', 3), "
        "('invoices', 'late', 1)",
    )
    put_in_quarantine(engine, "spoilt", "1", "2", "3")

    def found(*arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = taskbridge("status", "--json", *arguments).json["pipelines"]["invoices"]
        return answer

    for order, expected in (
        ("name", ["calm", "failing", "late", "much", "spoilt"]),
        ("age", ["late", "much", "failing", "calm", "spoilt"]),
        ("pending", ["much", "failing", "calm", "late", "spoilt"]),
        ("failures", ["failing", "late", "calm", "much", "spoilt"]),
        ("quarantine", ["spoilt", "calm", "failing", "late", "much"]),
    ):
        first = found("--sort", order, "--limit", "3")
        assert (list(first["tenants"]), first["next"]) == (expected[:3], "late" if order == "name" else None)
    assert list(found("--after", "failing", "--limit", "2")["tenants"]) == ["late", "much"]
    assert list(found("--failing")["tenants"]) == ["failing", "late"]
    run(
        engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
        "SELECT 'invoices', 'a' || n FROM generate_series(1, 600) n",
    )
    for order, worst in (("failures", "failing"), ("quarantine", "spoilt")):
        assert list(found("--sort", order, "--limit", "1")["tenants"]) == [worst]


def test_a_shell_that_evaluates_env_has_the_same_settings(bare: Program) -> None:
    given = {
        "TASKBRIDGE_POSTGRES_URL": "postgresql://shop:it%27s@db/shop",
        "TASKBRIDGE_REDIS_URL": "sentinel://:it's@s1;sentinel://s2/0?master_name=shop",
        "TASKBRIDGE_REDIS_URL_ORDERS": "redis://orders/0",
        "TASKBRIDGE_REDIS": "orders",
    }
    commands = bare("env", **given).stdout
    shell = subprocess.run(["/bin/sh", "-c", f"{commands}\nenv"], env={}, capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in shell.stdout.splitlines())
    assert Settings.read(variables) == Settings.read(given)
