"""`taskbridge dashboard` serves this machine alone unless there is a password, and ends although a page is open."""

from __future__ import annotations

import re
import signal
import socket
import time
from http.client import HTTPConnection

import pytest

from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.waiting import wait_until

PASSWORD = "correct horse battery"


def test_it_serves_until_it_is_told_to_end_also_while_a_page_is_open(taskbridge: Program) -> None:
    with taskbridge.started("dashboard", "--port", "0") as running:
        (place,) = wait_until(
            lambda: re.findall(r"running on http://(127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        client = HTTPConnection(place, timeout=30)
        client.request("GET", "/tenants")
        answer = client.getresponse()
        page = answer.read().decode()
        # The connection stays open.
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        ended = running.end()
        took = time.monotonic() - began
        client.close()
    assert answer.status == 200
    assert "Tenants of invoices" in page
    assert "read-only" in page
    assert answer.getheader("server") is None
    assert took < 15
    assert "Traceback" not in ended.stderr
    assert "/tenants" not in ended.stderr, "the log names no tenant"


def test_it_listens_for_others_only_with_a_good_password_which_is_not_shown(taskbridge: Program) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "board.internal"):  # noqa: S104 - refused here
        ended = taskbridge("dashboard", "--host", host, "--port", "0")
        assert_one_clear_line(ended, "set TASKBRIDGE_DASHBOARD_PASSWORD", status=1)
    ended = taskbridge("dashboard", TASKBRIDGE_DASHBOARD_PASSWORD="short one")
    assert_one_clear_line(ended, "use 12 to 200 characters", status=1)
    assert "short one" not in ended.stderr


@pytest.mark.parametrize("command", [("dashboard",), ("serve", "shop:app")])
def test_a_port_that_another_program_has_is_named(taskbridge: Program, command: tuple[str, ...]) -> None:
    (taskbridge.directory / "shop.py").write_text("async def app(scope, receive, send): ...")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = taskbridge(*command, "--port", port)
    assert_one_clear_line(ended, f"port {port} of 127.0.0.1: Address already in use", "--port", status=1)


def test_with_a_password_it_listens_where_it_is_told(taskbridge: Program) -> None:
    taskbridge.environment["TASKBRIDGE_DASHBOARD_PASSWORD"] = PASSWORD
    with taskbridge.started("dashboard", "--host", "0.0.0.0", "--port", "0") as running:  # noqa: S104 - with a password
        (port,) = wait_until(lambda: re.findall(r"running on http://0\.0\.0\.0:([0-9]+)", running.stderr), "it listens")
        client = HTTPConnection("127.0.0.1", int(port), timeout=30)
        client.request("GET", "/")
        assert client.getresponse().status == 401
        client.close()
        running.process.send_signal(signal.SIGTERM)
        running.end()
