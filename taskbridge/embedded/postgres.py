"""The embedded PostgreSQL server and its cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import psycopg

from taskbridge.embedded.account import Account
from taskbridge.embedded.binaries import POSTGRES_MAJOR, find_postgres
from taskbridge.embedded.databases import has_database, make_database, set_search_path
from taskbridge.embedded.files import open_log, tail, write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, server_environment, stop_leftovers
from taskbridge.errors import Unavailable
from taskbridge.settings import Settings

NAME = "taskbridge"
"""The name of the role and of the database."""

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
    """The server of the cluster `directory`/postgres; its log and its password are in `data_dir`."""

    name = "PostgreSQL"
    start_seconds = 60.0  # recovery after a crash takes part of it

    def __init__(
        self,
        data_dir: Path,
        directory: Path,
        account: Account | None,
        *,
        durable: bool,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.log = data_dir / "postgres.log"
        self._password_file = data_dir / "postgres.password"
        self._cluster = directory / "postgres"
        self._account = account
        self._durable = durable
        self._settings = {**_SETTINGS, **({} if durable else _NOT_DURABLE), **(settings or {})}
        self._schema = Settings.read().schema
        self._binaries = find_postgres(account)
        self._password = ""

    def prepare(self) -> None:
        """Create the cluster if it is missing, and stop servers that a killed process left behind.

        Raises:
            Unavailable: the cluster belongs to another version.
        """
        if not self._cluster.exists():
            self._create()
        self._check_cluster()
        stop_leftovers(("postgres",), self._cluster)
        # PostgreSQL would not start if the pid in a stale file now belonged to another program of the same user.
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def url(self, port: int) -> str:
        """Return the URL of the database, including the password."""
        return f"postgresql://{NAME}:{self._password}@{HOST}:{port}/{NAME}"

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
        """Whether our own server accepts queries on `port`; creates the database if it is missing.

        Raises:
            Unavailable: the password in the data directory is not the cluster's.
        """
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
            with self._connect(port, "postgres") as connection:
                if not has_database(connection, NAME):
                    make_database(connection, NAME)
                # `SELECT * FROM deliveries` finds our tables; those in `public` come first.
                set_search_path(connection, NAME, ["public", self._schema])
        except psycopg.OperationalError as error:
            if "password" in str(error):
                raise Unavailable(
                    f"{self._password_file} does not have the password of the cluster {self._cluster}: restore the "
                    "file, or move the cluster away to start over"
                ) from error
            return False
        return True

    def _connect(self, port: int, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=HOST,
            port=port,
            user=NAME,
            password=self._password,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
            sslmode="disable",
            require_auth="scram-sha-256",  # never reveal the password to another program on this port
        )

    def _create(self) -> None:
        """Create the cluster in a temporary directory, which is renamed once it is complete."""
        for half_made in self._cluster.parent.glob("postgres.new-*"):
            shutil.rmtree(half_made, ignore_errors=True)
        building = self._cluster.with_name(f"postgres.new-{secrets.token_hex(4)}")
        building.mkdir(mode=0o700)
        pwfile = building.with_name(f"{building.name}.password")
        password = secrets.token_urlsafe(24)
        try:
            if self._account is not None:
                os.chown(building, self._account.pw_uid, self._account.pw_gid)
            write_private(pwfile, password, self._account)
            self._initdb(building, pwfile)
            write_private(self._password_file, password)
            building.rename(self._cluster)
        finally:
            pwfile.unlink(missing_ok=True)
            shutil.rmtree(building, ignore_errors=True)

    def _initdb(self, building: Path, pwfile: Path) -> None:
        command: list[str | Path] = [
            self._binaries / "initdb",
            f"--pgdata={building}",
            f"--pwfile={pwfile}",
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
            environment, directory = server_environment(), self._cluster.parent
            with Guarded(
                command, output=output, environment=environment, directory=directory, account=self._account
            ) as initdb:
                status = initdb.wait()
        if status != 0:
            raise Unavailable(
                f"initdb could not create a cluster in {building.parent} (status {status}); the end of its log, "
                f"{self.log}:\n{tail(self.log, log_start)}"
            )

    def _check_cluster(self) -> None:
        major = (self._cluster / "PG_VERSION").read_text(encoding="utf-8").strip()
        if major != str(POSTGRES_MAJOR):
            raise Unavailable(
                f"the cluster {self._cluster} was created by PostgreSQL {major}, but this is PostgreSQL "
                f"{POSTGRES_MAJOR}: move it away to start over, or dump it with pg_dumpall of version {major} first"
            )
        if self._password_file.exists():
            self._password = self._password_file.read_text(encoding="utf-8")
