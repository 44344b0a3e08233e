"""The examples in other languages write records that a worker handles, and send again what was answered with 503."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("language", COMMANDS)
@pytest.mark.timeout(400)
def test_an_example_writes_records_that_a_worker_handles(
    deployment: Deployment, url: str, tmp_path: Path, language: str
) -> None:
    ended = run(command(language), tmp_path, EVENTS_URL=url, EVENTS_TOKEN=TOKEN)
    assert ended.returncode == 0, ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert answers[0] == {"records": 2, "events": 0, "unmatched": 0}
    assert answers[1:] == ([] if language == "sh" else [{"records": 0, "events": 1, "unmatched": 0}])
    expected = [("acme", f"{language}-1"), ("acme", f"{language}-2")]
    wait_until(lambda: sorted(deployment.deliveries()) == expected, "the worker handles them")


class _AwayAtFirst(BaseHTTPRequestHandler):
    """A server that is away for the first request, and for ever where nobody has the token."""

    requests: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(body)
        is_allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
        status = 401 if not is_allowed else 503 if len(self.requests) == 1 else 200
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "1")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b'{"error": "no"}' if status != 200 else b"{}")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def away_at_first() -> Iterator[tuple[str, list[bytes]]]:
    requests: list[bytes] = []
    kind = type("Away", (_AwayAtFirst,), {"requests": requests})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/events", requests
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("language", COMMANDS)
@pytest.mark.timeout(400)
def test_an_example_sends_again_what_was_answered_with_503_and_nothing_else(
    away_at_first: tuple[str, list[bytes]], tmp_path: Path, language: str
) -> None:
    url, requests = away_at_first
    ended = run(command(language), tmp_path, EVENTS_URL=url, EVENTS_TOKEN=TOKEN)
    assert ended.returncode == 0, ended.stderr
    assert requests[0] == requests[1]
    assert len(requests) == (2 if language == "sh" else 3)
    requests.clear()
    ended = run(command(language), tmp_path, EVENTS_URL=url, EVENTS_TOKEN="wrong")
    assert ended.returncode != 0
    assert "401" in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    assert len(requests) == 1


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


def by_psql(url: str, tmp_path: Path) -> str:
    if shutil.which("psql") is None:
        pytest.skip("psql is not on PATH")
    ended = run(["psql", url, "-X", "-v", "ON_ERROR_STOP=1", "-f", "record.sql"], tmp_path)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def by_psycopg(url: str, _: Path) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((EXAMPLES / "record.sql").read_bytes())
    return ""


@pytest.mark.parametrize("write", [by_psql, by_psycopg])
def test_records_by_sql_are_handled_without_any_event(
    deployment: Deployment, producer_url: str, tmp_path: Path, write: Any
) -> None:
    with deployment.worker("-P", "solo"):
        write(producer_url, tmp_path)
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


def test_what_the_page_says_of_a_refused_record_is_so(producer_url: str) -> None:
    with psycopg.connect(producer_url, autocommit=True) as session:
        for arguments, why in (
            ("'Invoices', 'acme', '1', '{}'", "the source 'Invoices' is not allowed"),
            ("'invoices', '', '1', '{}'", "the tenant is empty"),
            ("'invoices', 'acme', '1', '[]'", "the document is no JSON object"),
        ):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match=why):
                session.execute(f"SELECT taskbridge.record({arguments})".encode())


@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_of_the_page_do_what_it_says(url: str, tmp_path: Path, number: int) -> None:
    shown = [block.text for block in blocks(OVER_HTTP) if block.kind == "posts"]
    assert len(shown) == 2
    if shutil.which("curl") is None:
        pytest.skip("curl is not on PATH")
    ended = run(["sh", "-eu", "-c", shown[number]], tmp_path, EVENTS_URL=url, EVENTS_TOKEN=TOKEN)
    assert ended.returncode == 0, ended.stderr
    (answers,) = [block.text.splitlines() for block in blocks(OVER_HTTP) if block.kind == f"answers {number}"]
    assert ended.stdout.splitlines() == answers
