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
"""

INSTALL = "is missing, which the extra 'web' of celery-taskbridge brings: run `pip install '.[web]'` in a checkout\n"


@pytest.fixture
def hooks(taskbridge: Program) -> Program:
    """A directory with a receiver in its module `hooks`."""
    (taskbridge.directory / "hooks.py").write_text(HOOKS, encoding="utf-8")
    return taskbridge


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


@pytest.mark.parametrize(
    ("target", "why", "status"),
    [
        ("hooks", "'hooks' is no MODULE:ATTRIBUTE", 2),
        (":app", "is no MODULE:ATTRIBUTE", 2),
        ("no_such:app", "the module 'no_such' does not import: ModuleNotFoundError", 1),
        ("..:app", "does not import", 1),
        ("hooks:missing", "hooks:missing is no ASGI app", 1),
        ("hooks:nothing", "hooks:nothing is no ASGI app", 1),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(hooks: Program, target: str, why: str, status: int) -> None:
    assert_one_clear_line(hooks("serve", target), why, status=status)


@pytest.mark.parametrize("missing", ["uvicorn", "starlette"])
def test_without_the_extra_the_command_says_what_to_install(hooks: Program, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from taskbridge.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", "hooks:app"],
        env=hooks.environment,
        cwd=hooks.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == f"taskbridge: {missing} {INSTALL}"


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("httpcore2", ("webhook", "send", "http://127.0.0.1:1/orders", "order.json")),
        ("starlette", ("webhook", "send", "http://127.0.0.1:1/orders", "order.json")),
        # a module of pipelines, as of `taskbridge.web.deliver`, or of a receiver
        ("httpcore2", ("status",)),
        ("httpcore2", ("serve", "sends:app")),
    ],
)
def test_without_the_extra_all_that_needs_it_says_what_to_install(
    hooks: Program, missing: str, arguments: tuple[str, ...]
) -> None:
    (hooks.directory / "sends.py").write_text("from taskbridge.web import deliver\n", encoding="utf-8")
    (hooks.directory / "order.json").write_text("{}", encoding="utf-8")
    code = f"import sys; sys.modules[{missing!r}] = None; from taskbridge.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**hooks.environment, "TASKBRIDGE_PIPELINES": "sends", "WEBHOOK_SECRET": "whsec_c2VjcmV0"},
        cwd=hooks.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"taskbridge: {missing} {INSTALL}"
