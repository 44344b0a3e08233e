"""A key-value store that speaks Redis's protocol, and cannot run the gate's scripts."""

from __future__ import annotations

import socketserver
import threading
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

INFO = b"redis_version:7.4.0\r\nrole:master\r\n"
HELLO = b"%2\r\n$6\r\nserver\r\n$5\r\nother\r\n$5\r\nproto\r\n:3\r\n"
REFUSED = "is not compatible with Redis"


@contextmanager
def store(**replies: bytes) -> Iterator[str]:
    """The URL of a store that knows these commands only, and gives these answers."""

    class Client(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(self.rfile.read(int(self.rfile.readline()[1:])))
                    self.rfile.readline()
                self.wfile.write(self._answer(words[0].upper()))

        def _answer(self, command: bytes) -> bytes:
            return replies.get(command.decode(), b"-ERR unknown command '%s'\r\n" % command)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Client) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


KNOWN = {"PING": b"+PONG\r\n", "HELLO": HELLO, "INFO": b"$%d\r\n%s\r\n" % (len(INFO), INFO)}


@pytest.mark.parametrize(
    "replies",
    [{}, KNOWN, KNOWN | {"EVALSHA": b"-ERR Lua scripting is disabled\r\n"}, KNOWN | {"EVALSHA": b"*1\r\n:0\r\n"}],
)
def test_a_store_without_scripts_is_refused_by_doctor(deployment: Deployment, replies: dict[str, bytes]) -> None:
    with store(**replies) as url:
        settings = replace(deployment.settings, redis_url=url, broker_url=deployment.settings.redis_url)
        problems = [one for one in examine(runtime_of(make_app(settings).app)) if one.check == "Redis"]
    assert [(one.level, REFUSED in one.text) for one in problems] == [(Level.PROBLEM, True)], problems


@pytest.mark.e2e
def test_a_store_without_scripts_is_refused_at_the_start_of_a_worker(deployment: Deployment) -> None:
    with store(**KNOWN) as url:
        broker_url = deployment.settings.redis_url
        refused = pytest.raises(AssertionError, match=f"{REFUSED} .unknown command 'EVALSHA'")
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
