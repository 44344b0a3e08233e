"""The examples in other languages write records, over HTTP and by SQL."""

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
from tests.ending import ended

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
    go = {"GOCACHE": str(directory / "go"), "GOTOOLCHAIN": "local", "GO111MODULE": "off"}
    return ended(arguments, {**kept, **go, **variables}, EXAMPLES, seconds=100)


def written(deployment: Deployment) -> set[tuple[str, str]]:
    return {(row.tenant, row.key) for row in deployment.rows("SELECT tenant, key FROM taskbridge.records")}


@pytest.mark.timeout(400)
def test_the_examples_and_the_commands_of_the_page_write_records(
    deployment: Deployment, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    program = Program(tmp_path, deployment.environment(TASKBRIDGE_EVENTS_TOKENS=f"{TOKEN},{TOKEN}-new"))
    shown = [block.text for block in blocks(OVER_HTTP) if block.kind == "posts"]
    assert len(shown) == 2
    with program.listening("serve") as (client, _):
        variables = {"EVENTS_URL": f"http://127.0.0.1:{client.port}/events", "EVENTS_TOKEN": TOKEN}
        for number, text in enumerate(shown):
            with subtests.test(block=number):
                if shutil.which("curl") is None:
                    pytest.skip("curl is not on PATH")
                done = run(["sh", "-eu", "-c", text], tmp_path, **variables)
                (answers,) = [one.text.splitlines() for one in blocks(OVER_HTTP) if one.kind == f"answers {number}"]
                assert (done.returncode, done.stdout.splitlines()) == (0, answers), done.stderr
        for language in COMMANDS:
            with subtests.test(language=language):
                done = run(command(language), tmp_path, **variables)
                assert done.returncode == 0, done.stderr
                counts = [json.loads(line) for line in done.stdout.splitlines()]
                assert counts[0] == {"records": 2, "events": 0, "unmatched": 0}
                assert counts[1:] == ([] if language == "sh" else [{"records": 0, "events": 1, "unmatched": 0}])
                assert {("acme", f"{language}-1"), ("acme", f"{language}-2")} <= written(deployment)


@pytest.fixture
def producer_url(deployment: Deployment) -> Iterator[str]:
    """Postgres for a role that has the rights of the page, and no other."""
    (grants,) = [block.text for block in blocks(PAGE) if block.kind == "rights"]
    role = f"shop_{secrets.token_hex(4)}"
    deployment.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'change-me'")
    deployment.execute(re.sub(r"\bshop\b", role, grants))
    url = make_url(deployment.settings.postgres_url).set(drivername="postgresql", username=role, password="change-me")
    yield url.render_as_string(hide_password=False)
    deployment.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_records_are_written_by_sql_and_each_right_of_the_page_is_needed(
    deployment: Deployment, producer_url: str
) -> None:
    with psycopg.connect(producer_url, autocommit=True) as session:
        session.execute((EXAMPLES / "record.sql").read_bytes())
    assert written(deployment) == {("acme", "sql-1"), ("acme", "sql-2")}
    assert deployment.rows("SELECT count(DISTINCT xid) FROM taskbridge.records") == [(1,)]
    role = make_url(producer_url).username
    rights = [f"{one} ON taskbridge.records" for one in ("SELECT", "INSERT", "UPDATE")]
    for right in ("USAGE ON SCHEMA taskbridge", *rights):
        deployment.execute(f"REVOKE {right} FROM {role}")
        with psycopg.connect(producer_url) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT taskbridge.record('invoices', 'acme', '1', '{}')")
        deployment.execute(f"GRANT {right} TO {role}")
