"""`taskbridge dashboard` serves this machine alone unless there is a password, and ends although a page is open."""

from __future__ import annotations

import socket

import pytest

from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.waiting import taking_at_most


def test_it_serves_until_it_is_told_to_end_also_while_a_page_is_open(taskbridge: Program) -> None:
    # The connection stays open.
    with taking_at_most(30), taskbridge.listening("dashboard") as (client, running):
        client.request("GET", "/tenants")
        answer = client.getresponse()
        page = answer.read().decode()
    assert (answer.status, answer.getheader("server")) == (200, None)
    assert "Tenants of invoices" in page
    assert "read-only" in page
    assert "/tenants" not in running.stderr, "the log names no tenant"


def test_it_listens_for_others_only_with_a_good_password_which_is_not_shown(taskbridge: Program) -> None:
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
