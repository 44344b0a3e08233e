"""The embedded PostgreSQL server and its cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import psycopg

from taskbridge.embedded.account import as_user, server_account
from taskbridge.embedded.binaries import find_postgres
from taskbridge.embedded.directories import choose_cluster
from taskbridge.embedded.files import open_log, tail, write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, server_environment, stop_leftovers
from taskbridge.errors import Unavailable
from taskbridge.settings import Settings

NAME = "taskbridge"
"""The name of the role. The database is the one that initdb creates, `postgres`."""

_PWFILE = "pwfile"
_STOP = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))  # fast shutdown, then immediate
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_prepared_transactions": "10",
}
# For tests. Their files may be in memory, so the size of the write-ahead log is limited.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
# Tests connect thousands of times, and each iteration costs the client time. Iterations protect weak passwords; ours
# are random.
_MADE_QUICKLY = ("--no-sync", "--set=scram_iterations=1")


class Postgres:
    """The server of the cluster of `data_dir`, which also has its log. The cluster has its password.

    Raises:
        Unavailable: it is not installed, or its user has no access to the directory.
    """

    name = "PostgreSQL"
    start_seconds = 60.0  # recovery after a crash takes part of it

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.log = data_dir / "postgres.log"
        self._account = server_account(data_dir / "postgres")
        self._cluster = choose_cluster(data_dir, self._account)
        self.lock = self._cluster.with_name(f"{self._cluster.name}.lock")
        self._durable = durable
        # `SELECT * FROM deliveries` finds our tables; those in `public` come first.
        path = {"search_path": f'public, "{Settings.read().schema}"'}
        self._settings = {**_SETTINGS, **path, **({} if durable else _NOT_DURABLE), **(settings or {})}
        self._binaries = find_postgres(self._account)
        self._password = ""

    def prepare(self) -> None:
        """Create the cluster if it is missing, and stop servers that a killed process left behind."""
        if not self._cluster.exists():
            self._create()
        self._password = (self._cluster / _PWFILE).read_text(encoding="utf-8")
        stop_leftovers(("postgres",), self._cluster)
        # PostgreSQL would not start if the pid in a stale file now belonged to another program of the same user.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def url(self, port: int) -> str:
        """Return the URL of the database, including the password."""
        return f"postgresql://{NAME}:{self._password}@{HOST}:{port}/postgres"

    def start(self, port: int, output: BinaryIO) -> Guarded:
        """Start the server on `port`."""
        settings = {**self._settings, "port": str(port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Guarded(
            [self._binaries / "postgres", "-D", self._cluster, *options],
            stop=_STOP,
            output=output,
            environment=server_environment(),
            directory=self._cluster.parent,
            account=self._account,
        )

    def answers(self, port: int, pid: int) -> bool:
        """Whether our own server accepts connections on `port`."""
        # The server writes its pid in line 1, and "ready" in line 8 once it has the port, so we never talk to another
        # program that took the port.
        try:
            text = (self._cluster / "postmaster.pid").read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        lines = [line.strip() for line in text.splitlines()]
        if lines[:1] != [str(pid)] or lines[7:8] != ["ready"]:
            return False
        try:
            # `require_auth`: never reveal the password to another program on this port.
            psycopg.connect(self.url(port), connect_timeout=5, sslmode="disable", require_auth="scram-sha-256").close()
        except psycopg.OperationalError:
            return False
        return True

    def _create(self) -> None:
        """Create the cluster in a temporary directory, from which it is moved once it is complete."""
        # With the name of the cluster, because the directory may be shared with other deployments.
        parent, prefix, account = self._cluster.parent, f"{self._cluster.name}.new-", self._account
        for half_made in parent.glob(f"{prefix}*"):
            shutil.rmtree(half_made, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as building:
            cluster, password = Path(building, "cluster"), Path(building, _PWFILE)
            write_private(password, secrets.token_urlsafe(24))
            if account is not None:
                for path in (building, password):
                    os.chown(path, account.pw_uid, account.pw_gid)
            self._initdb(cluster, password)
            password.rename(cluster / _PWFILE)
            cluster.rename(self._cluster)

    def _initdb(self, cluster: Path, password: Path) -> None:
        command: list[str | Path] = [
            self._binaries / "initdb",
            f"--pgdata={cluster}",
            f"--pwfile={password}",
            f"--username={NAME}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            *([] if self._durable else _MADE_QUICKLY),
        ]
        with open_log(self.log) as output:
            log_start = output.seek(0, os.SEEK_END)
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(),
                cwd=cluster.parent,
                check=False,
                **as_user(self._account),
            ).returncode
        if status != 0:
            raise Unavailable(
                f"initdb could not create a cluster (status {status}); the end of its log, "
                f"{self.log}:\n{tail(self.log, log_start)}"
            )
