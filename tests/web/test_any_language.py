"""The examples in other languages write records that a worker handles, and send again what was answered with 503."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.cli.program import Program
from tests.deployment import Deployment
from tests.docs.pages import blocks
from tests.waiting import TIME_FACTOR, wait_until

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "any_language"
PAGE = ROOT / "docs" / "how-to" / "any-language.md"
OVER_HTTP = ROOT / "docs" / "how-to" / "events-over-http.md"
TOKEN = secrets.token_hex(16)
COMMANDS = {"sh": ["sh", "post.sh"], "node": ["node", "post.mjs"], "go": ["go", "run", "post.go"]}
NEEDS = {"sh": "curl"}


def command(language: str) -> list[str]:
    """The command of an example; a test that needs a program which is not there is skipped."""
    program = NEEDS.get(language, language)
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")
    return COMMANDS[language]


def run(arguments: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")}
    return subprocess.run(
        arguments,
        cwd=EXAMPLES,
        env={**kept, "GOCACHE": str(directory / "go"), "GOTOOLCHAIN": "local", "GO111MODULE": "off", **variables},
        capture_output=True,
        text=True,
        timeout=100 * TIME_FACTOR,
        check=False,
    )


@pytest.fixture
def url(deployment: Deployment, tmp_path: Path) -> Iterator[str]:
    """The address of `taskbridge serve`, beside a worker that handles what is posted there."""
    program = Program(tmp_path, deployment.environment(TASKBRIDGE_EVENTS_TOKENS=f"{TOKEN},{TOKEN}-new"))
    with deployment.worker("-P", "solo"), program.started("serve", "--port", "0") as running:
        found = wait_until(lambda: re.findall(r"running on (http://127\.0\.0\.1:[0-9]+)", running.stderr), "it listens")
        yield f"{found[0]}/events"
        running.process.terminate()
        assert running.end().status == 0


@pytest.mark.timeout(400)
def test_the_examples_and_the_commands_of_the_page_write_records_that_a_worker_handles(
    deployment: Deployment, url: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    shown = [block.text for block in blocks(OVER_HTTP) if block.kind == "posts"]
    assert len(shown) == 2
    for number, text in enumerate(shown):
        with subtests.test(block=number):
            if shutil.which("curl") is None:
                pytest.skip("curl is not on PATH")
            ended = run(["sh", "-eu", "-c", text], tmp_path, EVENTS_URL=url, EVENTS_TOKEN=TOKEN)
            assert ended.returncode == 0, ended.stderr
            (answers,) = [block.text.splitlines() for block in blocks(OVER_HTTP) if block.kind == f"answers {number}"]
            assert ended.stdout.splitlines() == answers
    for language in COMMANDS:
        with subtests.test(language=language):
            ended = run(command(language), tmp_path, EVENTS_URL=url, EVENTS_TOKEN=TOKEN)
            assert ended.returncode == 0, ended.stderr
            counts = [json.loads(line) for line in ended.stdout.splitlines()]
            assert counts[0] == {"records": 2, "events": 0, "unmatched": 0}
            assert counts[1:] == ([] if language == "sh" else [{"records": 0, "events": 1, "unmatched": 0}])
            expected = {("acme", f"{language}-1"), ("acme", f"{language}-2")}
            wait_until(lambda: expected <= set(deployment.deliveries()), "the worker handles them")  # noqa: B023 - at once


@pytest.fixture
def producer_url(deployment: Deployment) -> Iterator[str]:
    """Postgres for a role that has the rights of the page, and no other."""
    (grants,) = [block.text for block in blocks(PAGE) if block.kind == "rights"]
    role = f"shop_{secrets.token_hex(4)}"
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'change-me'")
        connection.exec_driver_sql(re.sub(r"\bshop\b", role, grants))
    url = make_url(deployment.settings.postgres_url).set(drivername="postgresql", username=role, password="change-me")
    yield url.render_as_string(hide_password=False)
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_records_by_sql_are_handled_without_any_event(deployment: Deployment, producer_url: str) -> None:
    with deployment.worker("-P", "solo"):
        with psycopg.connect(producer_url, autocommit=True) as connection:
            connection.execute((EXAMPLES / "record.sql").read_bytes())
        expected = [("acme", "sql-1"), ("acme", "sql-2")]
        wait_until(lambda: sorted(deployment.deliveries()) == expected, "the worker finds them")
    assert deployment.rows("SELECT count(DISTINCT xid) FROM taskbridge.records") == [(1,)]


def test_each_right_of_the_page_is_needed(deployment: Deployment, producer_url: str) -> None:
    role = make_url(producer_url).username
    call = "SELECT taskbridge.record('invoices', 'acme', '1', '{}')"
    for right in (
        "USAGE ON SCHEMA taskbridge",
        *(f"{one} ON taskbridge.records" for one in ("SELECT", "INSERT", "UPDATE")),
    ):
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql(f"REVOKE {right} FROM {role}")
        with (
            psycopg.connect(producer_url) as session,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"),
        ):
            session.execute(call)
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql(f"GRANT {right} TO {role}")
    with psycopg.connect(producer_url, autocommit=True) as session:
        assert [session.execute(call).fetchone() for _ in range(2)] == [(True,), (False,)]
