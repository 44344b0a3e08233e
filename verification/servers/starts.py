"""Servers of other kinds, as the machine has them: each on a free port of 127.0.0.1, and ended with this process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from taskbridge.embedded import Guarded
from taskbridge.embedded.launch import HOST, server_environment
from tests.scraping import free_ports
from tests.waiting import wait_until

__all__ = ["Missing", "RabbitMQ", "program"]

RABBITMQ = "/usr/lib/rabbitmq/bin"
"""Where Debian has it. Its /usr/sbin/rabbitmq-server would run as another user, with the node of the system."""
STARTS_WITHIN = 90.0


class Missing(Exception):
    """What this machine lacks for a row."""


def program(name: str) -> Path:
    """Return a program of this machine; raise Missing if there is none."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"there is no {name} on this machine")
    return Path(found)


class RabbitMQ:
    """A node of RabbitMQ, with an epmd of its own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._command = program(f"{RABBITMQ}/rabbitmq-server")
        self._stack, self._log = stack, stack.enter_context((directory / "rabbitmq.log").open("wb"))
        self.port, distribution, epmd = free_ports(), free_ports(), free_ports()
        self._environment = {
            **server_environment(),
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_NODENAME": f"taskbridge-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_PID_FILE": str(directory / "rabbitmq.pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        }
        stack.enter_context(Guarded([program("epmd")], environment=self._environment))
        self.start()
        self.version = f"RabbitMQ {self._ask('version')}"

    @property
    def url(self) -> str:
        """Return the URL; guest may connect from this machine."""
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        """Start the node and return when it listens."""
        self._node = self._stack.enter_context(
            Guarded([self._command], stop=((signal.SIGTERM, 30.0),), output=self._log, environment=self._environment)
        )
        wait_until(self._listens, "RabbitMQ", STARTS_WITHIN)

    def restart(self, number: signal.Signals) -> None:
        """End the node by a signal, and start it again a second later."""
        os.killpg(self._node.pid, number)
        self._node.wait(60)
        time.sleep(1)
        self.start()

    def kinds(self) -> dict[str, str]:
        """Return the type of each queue of runs."""
        lines = self._ask("list_queues", "name", "type", "--quiet", "--no-table-headers").splitlines()
        return {name: kind for name, kind in map(str.split, lines) if name.startswith("taskbridge.")}

    def _ask(self, *words: str) -> str:
        command = [f"{RABBITMQ}/rabbitmqctl", *words]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()

    def _listens(self) -> bool:
        assert self._node.poll() is None, "RabbitMQ ended"
        with suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False
