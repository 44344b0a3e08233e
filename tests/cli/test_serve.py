"""`taskbridge serve` and `dashboard`: what they serve and whom, also while Postgres is away, and how they end."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Mapping
from http.client import HTTPConnection

import pytest
from sqlalchemy import Engine

from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.store.adopting import rows
from tests.waiting import taking_at_most

HOOKS = """
from taskbridge.web import Hmac, Webhook, receiver

app = receiver(Webhook("orders", Hmac("secret", header="x-signature"), tenant="$.t", key="$.k"))
nothing = None


async def without_lifespan(scope, receive, send):
    assert scope["type"] == "http"
    await app(scope, receive, send)
"""
TOKEN = "t0ken-of-a-program-1"
TOKENS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def hooks(taskbridge: Program) -> Program:
    """A directory with a receiver in its module `hooks`."""
    (taskbridge.directory / "hooks.py").write_text(HOOKS, encoding="utf-8")
    return taskbridge


def post(client: HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> int:
    client.request("POST", path, body, dict(headers))
    answer = client.getresponse()
    answer.read()
    if answer.getheader("Connection") == "close":
        client.close()
    return answer.status


ORDER = b'{"t": "acme", "k": "1"}'
SIGNED = {"x-signature": hmac.new(b"secret", ORDER, hashlib.sha256).hexdigest()}
EVENT = b'{"source": "invoices", "tenant": "acme", "key": "1", "document": {}}'


def test_a_receiver_is_served_and_requests_are_in_the_log_only_where_that_was_asked_for(
    hooks: Program, engine: Engine
) -> None:
    for options, lines in (((), 0), (("--access-log",), 4)):
        with hooks.listening("serve", "hooks:app", *options) as (client, running):
            assert post(client, "/orders", ORDER, SIGNED) == 200
            assert [post(client, "/orders", b"{}", {}) for _ in range(3)] == [401] * 3
            assert post(client, "/events", b"[]", TOKENS) == 404, "without a token of its own"
        assert running.said().count("POST /orders HTTP") == lines
        assert running.said().count("1 request to /orders answered with 401") == 1
    assert rows(engine, "SELECT tenant FROM taskbridge.records") == [("acme",)]


def test_a_receiver_is_served_while_postgres_is_away(hooks: Program) -> None:
    hooks.environment["TASKBRIDGE_POSTGRES_URL"] = "postgresql://127.0.0.1:1/nowhere"
    with hooks.listening("serve", "hooks:app") as (client, _):
        assert post(client, "/orders", ORDER, SIGNED) == 503


@pytest.mark.parametrize("target", [["hooks:without_lifespan"], []])
def test_events_are_served_beside_a_receiver_or_alone_where_there_is_a_token(
    hooks: Program, engine: Engine, target: list[str]
) -> None:
    hooks.environment["TASKBRIDGE_EVENTS_TOKENS"] = TOKEN
    with hooks.listening("serve", *target) as (client, running):
        assert post(client, "/events", EVENT, {}) == 401
        assert post(client, "/events", EVENT, TOKENS) == 200
        assert post(client, "/orders", ORDER, SIGNED) == (200 if target else 404)
    assert TOKEN not in running.said()
    assert rows(engine, "SELECT source FROM taskbridge.records WHERE tenant = 'acme'") == [("invoices",)] + [
        ("orders",) for _ in target
    ]


def test_what_cannot_be_served_is_said_in_one_line(hooks: Program) -> None:
    for target in (":app", "no_such:app", "hooks:no_such"):
        assert_one_clear_line(hooks("serve", target), status=2)


def test_a_module_of_pipelines_that_needs_an_extra_says_what_to_install(taskbridge: Program) -> None:
    (taskbridge.directory / "sends.py").write_text("from taskbridge.web import deliver\n", encoding="utf-8")
    code = "import sys; sys.modules['httpcore2'] = None; from taskbridge.cli.main import main; main()"
    ended = taskbridge.python("-c", code, "status", TASKBRIDGE_PIPELINES="sends")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("taskbridge: httpcore2, which the extra 'web' of celery-taskbridge provides")


def test_the_dashboard_is_served_until_it_is_told_to_end_also_while_a_page_is_open(taskbridge: Program) -> None:
    # The connection stays open.
    with taking_at_most(30), taskbridge.listening("dashboard") as (client, running):
        client.request("GET", "/tenants")
        answer = client.getresponse()
        page = answer.read().decode()
    assert (answer.status, answer.getheader("server")) == (200, None)
    assert "Tenants of invoices" in page
    assert "read-only" in page
    assert "/tenants" not in running.stderr, "the log names no tenant"


def test_the_dashboard_listens_for_others_only_with_a_good_password_which_is_not_shown(taskbridge: Program) -> None:
    for host in ("0.0.0.0", "::", "board.internal"):  # noqa: S104 - refused here
        ended = taskbridge("dashboard", "--host", host, "--port", "0")
        assert_one_clear_line(ended, "set TASKBRIDGE_DASHBOARD_PASSWORD", status=1)
    ended = taskbridge("dashboard", TASKBRIDGE_DASHBOARD_PASSWORD="short one")
    assert_one_clear_line(ended, "use 12 to 200 characters", status=1)
    assert "short one" not in ended.stderr
    taskbridge.environment["TASKBRIDGE_DASHBOARD_PASSWORD"] = "correct horse battery"
    anywhere = "0.0.0.0"  # noqa: S104 - with a password
    with taskbridge.listening("dashboard", "--host", anywhere, host=anywhere) as (client, _):
        client.request("GET", "/")
        assert client.getresponse().status == 401


@pytest.mark.parametrize("command", [("dashboard",), ("serve", "shop:app")])
def test_a_port_that_another_program_has_is_named(taskbridge: Program, command: tuple[str, ...]) -> None:
    (taskbridge.directory / "shop.py").write_text("async def app(scope, receive, send): ...")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = taskbridge(*command, "--port", port)
    assert_one_clear_line(ended, f"port {port} of 127.0.0.1: Address already in use", "--port", status=1)
