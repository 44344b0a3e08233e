"""`taskbridge serve` serves a receiver, also while Postgres is away, and says what is wrong with its argument."""

from __future__ import annotations

import hashlib
import hmac
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection

import pytest
from sqlalchemy import Engine

from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.waiting import wait_until

HOOKS = """
from taskbridge.web import Hmac, Webhook, receiver

app = receiver(Webhook("orders", Hmac("secret", header="x-signature"), tenant="$.t", key="$.k"))
nothing = None
taken = receiver(Webhook("events", Hmac("secret", header="x-signature"), tenant="$.t", key="$.k"))


async def without_lifespan(scope, receive, send):
    assert scope["type"] == "http"
    await app(scope, receive, send)
"""
TOKEN = "t0ken-of-a-program-1"
TOKENS = {"Authorization": f"Bearer {TOKEN}"}

NOT_INSTALLED = ", which the extra 'web' of celery-taskbridge provides, is not installed"
INSTALL = f"{NOT_INSTALLED}: run `pip install '.[web]'` in a checkout\n"


@pytest.fixture
def hooks(taskbridge: Program) -> Program:
    """A directory with a receiver in its module `hooks`."""
    (taskbridge.directory / "hooks.py").write_text(HOOKS, encoding="utf-8")
    return taskbridge


@pytest.mark.parametrize("option", [None, "--access-log"])
def test_requests_are_in_the_log_only_where_that_was_asked_for(
    hooks: Program,
    engine: Engine,  # noqa: ARG001 - the database is migrated
    option: str | None,
) -> None:
    with hooks.started("serve", "hooks:app", "--port", "0", *([option] if option else [])) as running:
        (place,) = wait_until(
            lambda: re.findall(r"running on http://(127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        client = HTTPConnection(place, timeout=30)
        for _ in range(3):
            client.request("POST", "/orders", b"{}")
            answer = client.getresponse()
            answer.read()
            assert answer.status == 401
        client.close()
        running.process.send_signal(signal.SIGTERM)
        ended = running.end()
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if "/orders" in line]
    assert len([line for line in lines if "POST /orders HTTP" in line]) == (3 if option else 0)
    assert len([line for line in lines if "1 request to /orders answered with 401" in line]) == 1


@pytest.mark.parametrize("away", [False, True])
def test_a_receiver_is_served_until_it_is_told_to_end(hooks: Program, engine: Engine, *, away: bool) -> None:
    if away:
        hooks.environment["TASKBRIDGE_POSTGRES_URL"] = "postgresql://127.0.0.1:1/nowhere"
    with hooks.started("serve", "hooks:app", "--port", "0") as running:
        (place,) = wait_until(
            lambda: re.findall(r"running on http://(127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        body = b'{"t": "acme", "k": "1"}'
        headers = {"x-signature": hmac.new(b"secret", body, hashlib.sha256).hexdigest()}
        client = HTTPConnection(place, timeout=30)
        client.request("POST", "/orders", body, headers)
        status = client.getresponse().status
        client.close()
        running.process.send_signal(signal.SIGTERM)
        ended = running.end()
    assert status == (503 if away else 200)
    with engine.connect() as connection:
        tenants = connection.exec_driver_sql("SELECT tenant FROM taskbridge.records").scalars().all()
    assert tenants == ([] if away else ["acme"])
    assert ended.status == 0
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("target", ["hooks:app", "hooks:without_lifespan", None])
def test_events_are_served_beside_a_receiver_or_alone_where_there_is_a_token(
    hooks: Program, engine: Engine, target: str | None
) -> None:
    hooks.environment["TASKBRIDGE_EVENTS_TOKENS"] = TOKEN
    body = b'{"t": "acme", "k": "1"}'
    signature = hmac.new(b"secret", body, hashlib.sha256).hexdigest()
    with hooks.started("serve", *([target] if target else []), "--port", "0") as running:
        (place,) = wait_until(
            lambda: re.findall(r"running on http://(127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        client = HTTPConnection(place, timeout=30)
        found = []
        for path, sent, headers in (
            ("/events", b'{"source": "invoices", "tenant": "acme", "key": "1", "document": {}}', {}),
            ("/events", b'{"source": "invoices", "tenant": "acme", "key": "1", "document": {}}', TOKENS),
            ("/orders", body, {"x-signature": signature}),
        ):
            client.request("POST", path, sent, headers)
            answer = client.getresponse()
            answer.read()
            found.append(answer.status)
            if answer.getheader("Connection") == "close":
                client.close()
        client.close()
        running.process.send_signal(signal.SIGTERM)
        ended = running.end()
    assert found == [401, 200, 200 if target else 404]
    with engine.connect() as connection:
        sources = connection.exec_driver_sql("SELECT source FROM taskbridge.records ORDER BY 1").scalars().all()
    assert sources == ["invoices", "orders"][: 2 if target else 1]
    assert ended.status == 0
    assert "Traceback" not in ended.stderr
    assert TOKEN not in ended.stderr + ended.stdout


def test_without_a_token_no_events_are_served(hooks: Program) -> None:
    with hooks.started("serve", "hooks:app", "--port", "0") as running:
        (place,) = wait_until(
            lambda: re.findall(r"running on http://(127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        client = HTTPConnection(place, timeout=30)
        client.request("POST", "/events", b"[]", TOKENS)
        assert client.getresponse().status == 404
        client.close()


@pytest.mark.parametrize(
    ("target", "why", "status"),
    [
        ("hooks", "'hooks' is not MODULE:ATTRIBUTE", 2),
        (":app", "is not MODULE:ATTRIBUTE", 2),
        ("no_such:app", "the module 'no_such' cannot be imported (ModuleNotFoundError", 1),
        ("..:app", "cannot be imported", 1),
        ("hooks:missing", "hooks:missing is not an ASGI app", 1),
        ("hooks:nothing", "hooks:nothing is not an ASGI app", 1),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(hooks: Program, target: str, why: str, status: int) -> None:
    assert_one_clear_line(hooks("serve", target), why, status=status)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("uvicorn", ("serve", "hooks:app")),
        ("starlette", ("serve", "hooks:app")),
        # a module of pipelines, as of `taskbridge.web.deliver`, or of a receiver
        ("httpcore2", ("status",)),
        ("httpcore2", ("serve", "sends:app")),
    ],
)
def test_without_the_extra_all_that_needs_it_says_what_to_install(
    hooks: Program, missing: str, arguments: tuple[str, ...]
) -> None:
    (hooks.directory / "sends.py").write_text("from taskbridge.web import deliver\n", encoding="utf-8")
    code = f"import sys; sys.modules[{missing!r}] = None; from taskbridge.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**hooks.environment, "TASKBRIDGE_PIPELINES": "sends"},
        cwd=hooks.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"taskbridge: {missing}{INSTALL}"
