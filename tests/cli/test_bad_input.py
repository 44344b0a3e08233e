"""Bad input ends with one clear line and a status; nothing is written, and no traceback or password is shown."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, make_url

from taskbridge.cli.main import COMMANDS
from tests.cli.files import HEADER, line, write
from tests.cli.program import Ended, Program


def assert_one_clear_line(ended: Ended, *parts: str, status: int) -> None:
    assert ended.status == status, ended.stderr
    assert not ended.stdout
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(("taskbridge: ", "Error: ")), ended.stderr
    for part in parts:
        assert part in last


def _missing(_: Path) -> str:
    return "cannot read"


def _empty(path: Path) -> str:
    path.touch()
    return "there is no column"


def _wrong_columns(path: Path) -> str:
    write(path, ["1,2"], header="Number,Amount")
    return "there is no column"


def _only_a_header(path: Path) -> str:
    write(path, [])
    return "has no invoices"


def _a_directory(path: Path) -> str:
    path.mkdir()
    return "cannot read"


def _latin_1(path: Path) -> str:
    path.write_bytes(f"{HEADER}\n{line('1')}\n{line('2', 'Österreich')}\n".encode("latin-1"))
    return "invoices.csv:3: not UTF-8"


def _too_few_fields(path: Path) -> str:
    write(path, [line("1"), "2,France"])
    return "invoices.csv:3: the line has more or fewer fields than the header"


def _an_open_quote(path: Path) -> str:
    write(path, [line("1"), '2,"S1'])
    return "invoices.csv:3: unexpected end of data"


def _no_tenant(path: Path) -> str:
    write(path, [line("1"), line("2", "")])
    return "invoices.csv:3: the tenant is empty"


def _no_key(path: Path) -> str:
    write(path, [line("")])
    return "invoices.csv:2: "


def _two_tenants(path: Path) -> str:
    write(path, [line("1"), line("1", "Malta")])
    return "invoices.csv:3: the invoice '1' belongs to 'Malta' here, but to 'France' above"


BAD_FILES = (
    *(_missing, _empty, _wrong_columns, _only_a_header, _a_directory, _latin_1),
    *(_too_few_fields, _an_open_quote, _no_tenant, _no_key, _two_tenants),
)


@pytest.mark.parametrize("make", BAD_FILES)
def test_a_file_that_cannot_be_read_ends_up_before_any_server_is_started(
    make: Callable[[Path], str], bare: Program
) -> None:
    expected = make(bare.directory / "invoices.csv")
    ended = bare("up", "--import", "invoices.csv", "--exit-when-idle", "--json")
    assert_one_clear_line(ended, "invoices.csv", expected, status=2)
    assert not (bare.directory / ".taskbridge").exists()


SECRET = "s3cr3t-Pa55"


@pytest.mark.parametrize(
    ("variable", "change", "expected"),
    [
        ("TASKBRIDGE_POSTGRES_URL", {"password": SECRET}, "Postgres refuses the password"),
        ("TASKBRIDGE_POSTGRES_URL", {"port": None}, "Postgres cannot be reached"),
        ("TASKBRIDGE_POSTGRES_URL", {"database": "nowhere"}, "Postgres has no such database"),
        ("TASKBRIDGE_POSTGRES_URL", {"host": "nowhere.invalid"}, "correct it in TASKBRIDGE_POSTGRES_URL"),
        ("TASKBRIDGE_POSTGRES_URL", {"query": {"sslmode": "require"}}, "do not agree on TLS"),
        ("TASKBRIDGE_POSTGRES_URL", {"query": {"sslmode": "maybe"}}, "correct sslmode in TASKBRIDGE_POSTGRES_URL"),
        ("TASKBRIDGE_REDIS_URL", {"password": SECRET}, "Redis refuses the password"),
        ("TASKBRIDGE_REDIS_URL", {"port": None}, "Redis cannot be reached"),
        ("TASKBRIDGE_REDIS_URL", {"host": "nowhere.invalid"}, "Redis is at a host that is not known"),
        ("TASKBRIDGE_REDIS_URL", {"database": "9999"}, "Redis refuses the command"),
    ],
)
def test_servers_that_cannot_be_used_are_told_apart(
    variable: str, change: dict[str, object], expected: str, taskbridge: Program, configured: dict[str, str]
) -> None:
    if "port" in change:
        change = {"port": _closed_port()}
    url = make_url(configured[variable]).set(**change)  # type: ignore[arg-type]
    ended = taskbridge("status", **{variable: url.render_as_string(hide_password=False)})
    place = () if "refuses the command" in expected else (f"({url.host}:{url.port})",)
    assert_one_clear_line(ended, expected, *place, status=1)
    assert str(make_url(configured[variable]).password) not in ended.stderr
    assert SECRET not in ended.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TASKBRIDGE_POSTGRES_URL": "mysql://u:s3cr3t-Pa55@h/d"}, "TASKBRIDGE_POSTGRES_URL must begin with"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://u:s3cr3t-Pa55@h:x/d"}, "TASKBRIDGE_POSTGRES_URL cannot be read"),
        (
            {"TASKBRIDGE_POSTGRES_URL": "postgresql://u:s3cr3t-Pa55@h/d?pool=3"},
            "that libpq does not take (pool): correct",
        ),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://h/d?password=a&s3cr3t-Pa55=b"}, "that libpq does not take: correct"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://h/d?connect_timeout=soon"}, "not take (connect_timeout): correct"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://h/d?connect_timeout=inf"}, "not take (connect_timeout): correct"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://127.0.0.1/d?port=abc"}, "libpq does not take a value in its URL"),
        (
            {"TASKBRIDGE_POSTGRES_URL": "postgresql://127.0.0.1:1/d?tcp_user_timeout=zz"},
            "libpq does not take a value in its URL",
        ),
        ({"TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@h:x/0"}, "TASKBRIDGE_REDIS_URL cannot be read"),
        ({"TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@h/0?foo=1"}, "that redis-py does not take (foo): correct it"),
        ({"TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@h/0?db-2=1"}, "that redis-py does not take (db-2): correct it"),
        (
            {"TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@h/0?socket_timeout=abc"},
            "or a value of one, that redis-py does not take (socket_timeout): correct it",
        ),
        ({"TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@h/0?retry=1"}, "that redis-py does not take: correct it"),
        ({"TASKBRIDGE_BROKER_URL": "redis://:s3cr3t-Pa55@h:x/0"}, "TASKBRIDGE_BROKER_URL cannot be read"),
        ({"TASKBRIDGE_REDIS_URL": ""}, "TASKBRIDGE_POSTGRES_URL is set but TASKBRIDGE_REDIS_URL is not"),
        ({"TASKBRIDGE_POSTGRES_URL": ""}, "TASKBRIDGE_REDIS_URL is set but TASKBRIDGE_POSTGRES_URL is not"),
        ({"TASKBRIDGE_RUN_BUDGET": "soon"}, "give a number of seconds"),
        ({"TASKBRIDGE_KEY_PREFIX": "a:b"}, "the key prefix 'a:b' is not allowed"),
        ({"TASKBRIDGE_SCHEMA": "public"}, "the schema 'public' is not allowed"),
        ({"TASKBRIDGE_PIPELINES": "no_such_module"}, "the pipeline module 'no_such_module' does not import"),
    ],
)
def test_settings_that_cannot_work_are_named(variables: dict[str, str], expected: str, taskbridge: Program) -> None:
    ended = taskbridge("status", **variables)
    assert_one_clear_line(ended, expected, status=1)
    assert SECRET not in ended.stderr


def test_a_handler_module_with_an_error_in_it_is_named_with_the_error(taskbridge: Program) -> None:
    (taskbridge.directory / "handlers.py").write_text("1 / 0\n", encoding="utf-8")
    ended = taskbridge("notify", "France", TASKBRIDGE_PIPELINES="handlers")
    assert_one_clear_line(ended, "'handlers'", "ZeroDivisionError", status=1)


@pytest.mark.parametrize(
    ("tenant", "expected"),
    [("", "the tenant is empty"), ("x" * 201, "201 characters"), ("a\x1b[2Jb", "U+001B"), (" a", "space")],
)
def test_a_tenant_that_is_not_allowed_is_no_event(
    tenant: str, expected: str, taskbridge: Program, gate_redis: redis.Redis
) -> None:
    assert_one_clear_line(taskbridge("notify", tenant), expected, status=2)
    assert_one_clear_line(taskbridge("inspect", tenant), expected, status=2)
    assert gate_redis.dbsize() == 0


@pytest.mark.parametrize("arguments", [("notify", "France", "--pipeline", "nix"), ("status", "--pipeline", "nix")])
def test_an_unknown_pipeline_is_named_beside_those_that_there_are(
    arguments: tuple[str, ...], taskbridge: Program
) -> None:
    assert_one_clear_line(taskbridge(*arguments), "'nix'", "invoices", status=2)


@pytest.mark.parametrize(
    "command",
    [
        ("status", "--sort", "runs", "--hours", "nan"),
        ("drain", "--timeout", "nan"),
        ("up", "--exit-when-idle", "--timeout", "nan"),
    ],
)
def test_what_is_no_number_lies_in_no_range(command: tuple[str, ...], taskbridge: Program) -> None:
    assert_one_clear_line(taskbridge(*command), "'nan' is not a number", status=2)


@pytest.mark.parametrize("command", [("pause", "acme"), ("status",), ("migrate",)])
def test_a_schema_that_this_version_does_not_know_is_left_alone(
    command: tuple[str, ...], taskbridge: Program, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.taskbridge_schema SET version_num = '9999'")
    assert_one_clear_line(taskbridge(*command), "9999", "does not know", status=1)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar_one() == 0


def test_a_schema_of_somebody_else_is_told_by_all_with_one_way_out(taskbridge: Program, engine: Engine) -> None:
    taskbridge("migrate", "--to", "base", "--yes")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA taskbridge; CREATE TABLE taskbridge.bridges (id int)")
    said = (
        "the database has a schema taskbridge that is not TaskBridge's (it holds 'bridges')",
        "set TASKBRIDGE_SCHEMA to another name in all processes, and run `taskbridge migrate`",
    )
    for command in ("migrate", "status"):
        assert_one_clear_line(taskbridge(command), ": ".join(said), status=1)
    (schema,) = [one for one in taskbridge("doctor", "--json").json["findings"] if one["check"] == "schema"]
    assert (schema["level"], schema["text"], schema["remedy"]) == ("problem", *said)
    worker = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "taskbridge", "worker", "-P", "solo"],
        env=taskbridge.environment,
        cwd=taskbridge.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert worker.stderr.splitlines()[-1] == f"taskbridge: {': '.join(said)}"
    # and the way out is one
    assert taskbridge("migrate", TASKBRIDGE_SCHEMA="bridge").status == 0
    assert taskbridge("status", TASKBRIDGE_SCHEMA="bridge").status == 0


WITHOUT_SERVERS: dict[str, list[tuple[str, ...]]] = {
    "adopt": [("orders", "--tenant", "customer", "--key", "id")],
    "dashboard": [()],
    "doctor": [(), ("--json",)],
    "drain": [("France",)],
    "env": [()],
    "inspect": [("France",), ("--record", "1")],
    "metrics": [()],
    "migrate": [(), ("--to", "base", "--yes"), ("--rebase", "--yes")],
    "notify": [("France",)],
    "pause": [("France",)],
    "pipeline": [("remove", "others", "--yes")],
    "prune": [("--older-than", "1d")],
    "quarantine": [("list",), ("retry", "--all"), ("discard", "--all", "--yes")],
    "record": [("alerts", "a.jsonl")],
    "resume": [("France",)],
    "serve": [("shop:app",)],
    "status": [(), ("--json",), ("--sort", "runs")],
    "unadopt": [("orders",)],
}
"""All commands but `up`, which makes servers."""


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"up"}))
def test_a_command_without_servers_makes_no_database_that_nobody_asked_for(command: str, bare: Program) -> None:
    write(bare.directory / "invoices.csv", [line("1")])
    (bare.directory / "a.jsonl").write_text('{"level": "ERROR"}\n', encoding="utf-8")
    for arguments in WITHOUT_SERVERS[command]:
        ended = bare(command, *arguments)
        assert_one_clear_line(
            ended, "TASKBRIDGE_POSTGRES_URL", "TASKBRIDGE_REDIS_URL", "set both", "`taskbridge up`", status=1
        )
    assert not (bare.directory / ".taskbridge").exists()


def test_what_an_earlier_up_has_left_is_not_taken_for_the_database_that_was_meant(bare: Program) -> None:
    (bare.directory / ".taskbridge").mkdir()
    (bare.directory / ".taskbridge" / "lock").touch()
    for command in (("migrate",), ("status",), ("doctor",)):
        assert_one_clear_line(bare(*command), "TASKBRIDGE_POSTGRES_URL", "`taskbridge up`", status=1)
    assert [one.name for one in (bare.directory / ".taskbridge").iterdir()] == ["lock"]


def test_an_error_that_nobody_foresaw_is_one_line_and_its_traceback_is_there_on_demand(taskbridge: Program) -> None:
    (taskbridge.directory / "oddconfig.py").write_text("raise LookupError('odd')\n", encoding="utf-8")
    odd = {"CELERY_CONFIG_MODULE": "oddconfig"}
    assert_one_clear_line(taskbridge("notify", "France", **odd), "LookupError", "odd", status=70)
    shown = taskbridge("notify", "France", TASKBRIDGE_TRACEBACK="1", **odd)
    assert "Traceback" in shown.stderr


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
