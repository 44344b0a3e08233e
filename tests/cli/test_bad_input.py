"""Bad input ends with one clear line and a status; nothing is written, and no traceback or password is shown."""

from __future__ import annotations

import redis

from taskbridge.cli.main import cli
from taskbridge.gate import Keys
from tests.cli.program import Ended, Program
from tests.cli.scenes import HEADER, line


def assert_one_clear_line(ended: Ended, *parts: str, status: int) -> None:
    assert ended.status == status, ended.stderr
    assert not ended.stdout
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(("taskbridge: ", "Error: ")), ended.stderr
    for part in parts:
        assert part in last


BAD_FILES: dict[str, bytes | None] = {
    "cannot read": None,
    "there is no column Country, InvoiceNo": b"Number,Amount\n1,2\n",
    "has no invoices": f"{HEADER}\n".encode(),
    "invoices.csv is not UTF-8": f"{HEADER}\n{line('1')}\n{line('2', 'Österreich')}\n".encode("latin-1"),
    "invoices.csv:3: the line has more or fewer fields than the header": f"{HEADER}\n{line('1')}\n2,France\n".encode(),
    "invoices.csv:3: unexpected end of data": f'{HEADER}\n{line("1")}\n2,"S1\n'.encode(),
    "invoices.csv:3: the tenant is empty": f"{HEADER}\n{line('1')}\n{line('2', '')}\n".encode(),
    "invoices.csv:3: the invoice '1' belongs to 'Malta' here, but to 'France' above": (
        f"{HEADER}\n{line('1')}\n{line('1', 'Malta')}\n".encode()
    ),
}


def test_a_file_that_cannot_be_read_ends_up_before_any_server_is_started(bare: Program) -> None:
    for expected, content in BAD_FILES.items():
        if content is not None:
            (bare.directory / "invoices.csv").write_bytes(content)
        ended = bare("up", "--import", "invoices.csv", "--exit-when-idle", "--json")
        assert_one_clear_line(ended, "invoices.csv", expected, status=2)
    assert not (bare.directory / ".taskbridge").exists()


SECRET = "s3cr3t-Pa55"


def test_settings_that_cannot_work_are_named_without_their_passwords(taskbridge: Program) -> None:
    (taskbridge.directory / "handlers.py").write_text("1 / 0\n", encoding="utf-8")
    for name, value, expected in (
        ("POSTGRES_URL", "postgresql://u:s3cr3t-Pa55@h:x/d", "TASKBRIDGE_POSTGRES_URL cannot be read"),
        ("POSTGRES_URL", "postgresql://h/d?password=a&s3cr3t-Pa55=b", "that libpq does not take: correct"),
        ("POSTGRES_URL", "postgresql://127.0.0.1/d?port=abc", "libpq rejects a value in its URL"),
        ("REDIS_URL", "redis://:s3cr3t-Pa55@h/0?foo=1", "that redis-py does not accept (foo): correct it"),
        ("REDIS_URL", "redis://:s3cr3t-Pa55@h/0?retry=1", "that redis-py does not accept: correct it"),
        ("BROKER_URL", "redis://:s3cr3t-Pa55@h:x/0", "TASKBRIDGE_BROKER_URL cannot be read"),
        ("REDIS_URL", "", "TASKBRIDGE_POSTGRES_URL is set but TASKBRIDGE_REDIS_URL is not"),
        ("KEY_PREFIX", "a:b", "the key prefix 'a:b' is not allowed"),
        ("PIPELINES", "handlers", "the pipeline module 'handlers' does not import"),
    ):
        ended = taskbridge("status", **{f"TASKBRIDGE_{name}": value})
        assert_one_clear_line(ended, expected, status=1)
        assert SECRET not in ended.stderr


def test_an_argument_that_is_not_utf_8_and_an_app_that_does_not_exist_are_wrong_usage(taskbridge: Program) -> None:
    for arguments in (
        ("inspect", "--record", "\udcff"),
        ("quarantine", "list", "--reason", "\udcff"),
        ("pause", "--reason", "\udcff"),
    ):
        assert_one_clear_line(taskbridge(*arguments), "is not UTF-8", status=2)
    assert_one_clear_line(taskbridge("doctor", "-A", "nonexistent"), "no Celery app 'nonexistent'", status=1)


def test_a_name_or_a_number_that_is_not_allowed_changes_nothing(taskbridge: Program, gate_redis: redis.Redis) -> None:
    for arguments, expected in (
        (("notify", ""), "the tenant is empty"),
        (("notify", "a\x1b[2Jb"), "U+001B"),
        (("notify", "France", "--pipeline", "nix"), "no pipeline is called 'nix'; there are: invoices"),
        *((("prune", f"--older-than={age}"), "is not a duration") for age in ("", "0d", "1.5d", "30D", "٣d", "36501d")),
    ):
        assert_one_clear_line(taskbridge(*arguments), expected, status=2)
    assert gate_redis.dbsize() == 0


WITHOUT_SERVERS: dict[str, tuple[str, ...]] = {
    "adopt": ("orders", "--tenant", "customer", "--key", "id"),
    "drain": ("France",),
    "inspect": ("France",),
    "notify": ("France",),
    "pause": ("France",),
    "pipeline": ("remove", "others", "--yes"),
    "prune": ("--older-than", "1d"),
    "quarantine": ("list",),
    "record": ("alerts", "a.jsonl"),
    "resume": ("France",),
    "serve": ("shop:app",),
    "unadopt": ("orders",),
}
"""Arguments of the commands that need some."""


def test_a_command_without_servers_makes_no_database_that_nobody_asked_for(bare: Program) -> None:
    (bare.directory / "a.jsonl").write_text('{"level": "ERROR"}\n', encoding="utf-8")
    # what an earlier `up` has left is not taken for the database that was meant
    (bare.directory / ".taskbridge").mkdir()
    (bare.directory / ".taskbridge" / "lock").touch()
    # `up` makes servers.
    for command in sorted(cli.commands.keys() - {"up"}):
        ended = bare(command, *WITHOUT_SERVERS.get(command, ()))
        assert_one_clear_line(
            ended, "TASKBRIDGE_POSTGRES_URL", "TASKBRIDGE_REDIS_URL", "set both", "`taskbridge up`", status=1
        )
    assert [one.name for one in (bare.directory / ".taskbridge").iterdir()] == ["lock"]


def test_an_error_that_nobody_foresaw_is_one_line_and_its_traceback_is_there_on_demand(taskbridge: Program) -> None:
    (taskbridge.directory / "oddconfig.py").write_text("raise LookupError('odd')\n", encoding="utf-8")
    odd = {"CELERY_CONFIG_MODULE": "oddconfig"}
    assert_one_clear_line(taskbridge("notify", "France", **odd), "LookupError", "odd", status=70)
    shown = taskbridge("notify", "France", TASKBRIDGE_TRACEBACK="1", **odd)
    assert "Traceback" in shown.stderr


def test_a_run_that_the_broker_does_not_take_is_not_called_published(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    for url, wrong in (
        ("redis://:s3cr3t-Pa55@127.0.0.1:1/0", "the broker cannot be reached (127.0.0.1:1): "),
        ("rabbit://u:s3cr3t-Pa55@h//", "kombu knows no broker whose URL begins with rabbit://: "),
    ):
        ended = taskbridge("notify", "acme", TASKBRIDGE_BROKER_URL=url)
        assert (ended.status, ended.stdout) == (1, "")
        last = ended.stderr.splitlines()[-1]
        assert last.startswith(f"taskbridge: {wrong}")
        assert "The event has been counted: workers will publish the run when the broker is back" in ended.stderr
        assert "s3cr3t-Pa55" not in ended.stderr
        assert gate_redis.zscore(keys.due("invoices"), "acme") is not None, "its deadline publishes it again"
        gate_redis.flushdb()
