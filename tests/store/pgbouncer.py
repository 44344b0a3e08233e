"""A real PgBouncer, where the machine has one (as from `apt-get install pgbouncer`)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

import pytest
from sqlalchemy import make_url

from tests.scraping import free_ports, reachable
from tests.waiting import wait_until

__all__ = ["NEEDS_PGBOUNCER", "PgBouncer"]

_BINARY = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
NEEDS_PGBOUNCER = pytest.mark.skipif(_BINARY is None, reason="there is no pgbouncer on this machine")

_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
stats_users = {users_of_console}
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
server_login_retry = 1
"""


class PgBouncer:
    """PgBouncer before the server of a URL; `url` leads through it to the same database."""

    def __init__(
        self,
        postgres_url: str,
        directory: Path,
        *,
        mode: str = "transaction",
        size: int = 4,
        shows_console: bool = True,
    ) -> None:
        to, self._port = make_url(postgres_url), free_ports()
        self.url = to.set(host="127.0.0.1", port=self._port, query={}).render_as_string(hide_password=False)
        self._file = directory / "pgbouncer.ini"
        users = directory / "users.txt"
        users.write_text(f'"{to.username}" "{to.password}"\n', encoding="utf-8")
        self._file.write_text(
            _CONFIGURATION.format(
                host=to.query.get("host", to.host),
                port=to.query.get("port", to.port),
                user=to.username,
                password=to.password,
                own_port=self._port,
                users=users,
                users_of_console=to.username if shows_console else "",
                mode=mode,
                size=size,
            ),
            encoding="utf-8",
        )
        self._log = directory / "pgbouncer.log"
        self.start()

    def start(self) -> None:
        assert _BINARY is not None
        # It does not run as root, and has read its files by the time that it becomes another user.
        other_user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with self._log.open("a") as log:
            self._process = subprocess.Popen([_BINARY, *other_user, str(self._file)], stdout=log, stderr=log)
        wait_until(lambda: self._process.poll() is not None or reachable(self._port), "PgBouncer")
        assert self._process.poll() is None, self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGUSR1 is its PAUSE, and SIGUSR2 its RESUME."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it as an operator would who does not wait: its clients lose their connections."""
        self._process.kill()
        self._process.wait()

    def resize(self, size: int) -> None:
        """Let it have so many connections for each database from its next start."""
        settings = self._file.read_text(encoding="utf-8")
        settings = re.sub("default_pool_size = [0-9]+", f"default_pool_size = {size}", settings)
        self._file.write_text(settings, encoding="utf-8")

    def restart(self) -> None:
        self.stop()
        self.start()
