"""A key-value store that speaks Redis's protocol, and cannot run the gate's scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Gate, Keys, client
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment
from tests.redis_cluster import answers, redis_server
from tests.scraping import free_ports
from tests.waiting import wait_until

REFUSED = "is not compatible with Redis"


@contextmanager
def lacking(directory: Path, command: str) -> Iterator[str]:
    """The URL of a server that does not know a command."""
    port = free_ports()
    with redis_server(directory, port, f'rename-command {command} ""\n'), redis.Redis(port=port) as own:
        wait_until(lambda: answers(own), "the server answers")
        yield f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize("command", ["EVALSHA", "INFO"])
def test_a_store_without_scripts_is_refused_by_doctor(deployment: Deployment, tmp_path: Path, command: str) -> None:
    with lacking(tmp_path, command) as url:
        settings = replace(deployment.settings, redis_url=url, broker_url=deployment.settings.redis_url)
        problems = [one for one in examine(runtime_of(make_app(settings).app)) if one.check == "Redis"]
    assert [(one.level, REFUSED in one.text) for one in problems] == [(Level.PROBLEM, True)], problems


@pytest.mark.e2e
def test_a_store_without_scripts_is_refused_at_the_start_of_a_worker(deployment: Deployment, tmp_path: Path) -> None:
    with lacking(tmp_path, "EVALSHA") as url:
        broker_url = deployment.settings.redis_url
        refused = pytest.raises(AssertionError, match=f"{REFUSED} .unknown command .EVALSHA")
        with refused, deployment.worker(TASKBRIDGE_REDIS_URL=url, TASKBRIDGE_BROKER_URL=broker_url):
            pass


@pytest.mark.parametrize("refusal", ["ACL SETUSER default -evalsha", "ACL SETUSER default -zadd"])
def test_a_user_who_may_not_run_scripts_is_not_taken_for_another_store(
    tmp_path: Path, keys: Keys, refusal: str
) -> None:
    check_after(tmp_path, keys, refusal)


def test_a_server_that_refuses_writes_for_now_is_not_taken_for_another_store(tmp_path: Path, keys: Keys) -> None:
    check_after(tmp_path, keys, "CONFIG SET min-replicas-to-write 1")


def check_after(directory: Path, keys: Keys, command: str) -> None:
    """Check a server on which this command was executed."""
    port = free_ports()
    with redis_server(directory, port, ""), client(f"redis://127.0.0.1:{port}") as own:
        wait_until(lambda: answers(own), "the server answers")
        gate = Gate(own, keys, publish=lambda *_: None)
        gate.check_scripts()
        own.execute_command(*command.split())
        with pytest.raises(redis.ResponseError):
            gate.notify("invoices", "acme", Spacing(delay=0))
        gate.check_scripts()
