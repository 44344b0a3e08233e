"""A process that only looks reads by a session of its own, as a worker's pool would: same server, same limits."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from taskbridge.embedded import Servers
from taskbridge.errors import ConfigurationError
from taskbridge.store import NoAnswer, Reader, check_version, connect, record_invoice, undeclared_readers
from taskbridge.store.address import parameters_of
from taskbridge.store.queries import queries
from taskbridge.store.sessions import driving, scalar
from tests.waiting import wait_until

PID = "SELECT pg_backend_pid()"
BEFORE_2_1 = pytest.mark.skipif(sqlalchemy.__version__ < "2.1", reason="SQLAlchemy 2.0 reads it as something else")


@pytest.fixture
def reader(postgres_url: str) -> Iterator[Reader]:
    made = Reader(postgres_url, statement_timeout=0.5)
    yield made
    made.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:password@host:5432/database",
        "postgres://host/database",
        "postgresql+psycopg://user@host:1/",
        "postgresql://",
        "postgresql://user:@/database",
        pytest.param("postgresql://user:a/b#c?d%40%2F%@host/a+b%20c", marks=BEFORE_2_1),
        "postgresql://u+x:p+y@Host/database?application_name=own",
        "postgresql://user:password@[::1]:5432/database",
        "postgresql:///database?host=/var/run/postgresql&user=other",
        "postgresql://host/database?sslmode=verify-full&sslrootcert=/etc/ca.pem&empty=",
        "postgresql://host/database?options=-c+statement_timeout%3D7s&keepalives_idle=77",
        "postgresql://user:password@/database?host=a:1&host=b:2",
        "postgresql://user:password@/database?host=a&host=b:2",
        "postgresql://user:password@/database?host=a,b&port=1,2",
        pytest.param("postgresql://user:password@host/database?host=a:1", marks=BEFORE_2_1),
        "postgresql://host/database?host=::1",
        "postgresql://host/database?host=/tmp/a:b",
    ],
)
def test_a_url_leads_a_look_and_a_worker_to_the_same_server(url: str) -> None:
    _, theirs = PGDialect_psycopg().create_connect_args(make_url(url))  # type: ignore[no-untyped-call]
    kept = {name: value for name, value in theirs.items() if name not in ("context", "client_encoding")}
    assert parameters_of(url) == {
        name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in kept.items()
    }


def test_a_url_that_not_every_sqlalchemy_reads_alike(engine: Engine, servers: Servers) -> None:
    name = f"a b+{secrets.token_hex(4)}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    where = make_url(servers.postgres_url)
    url = f"postgresql://{where.username}:{where.password}@/{quote(name)}?host={where.host}:{where.port}"
    reader, worker = Reader(url), connect(url)
    try:
        with reader.lend() as session, worker.connect() as connection:
            assert scalar(session, "SELECT current_database()") == name
            assert connection.exec_driver_sql("SELECT current_database()").scalar() == name
    finally:
        reader.close()
        worker.dispose()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f'DROP DATABASE "{name}"')


@pytest.mark.parametrize("url", ["postgresql://host:port/x", "postgresql://a:5432,b:5432/x", "nothing", "://nothing"])
def test_a_url_that_no_worker_can_read_is_refused_without_being_shown(url: str) -> None:
    for read in (Reader, connect):
        with pytest.raises(ConfigurationError, match="cannot be read") as refused:
            read(url)
        assert url not in str(refused.value)


def test_a_reader_has_the_limits_of_a_worker_and_keeps_them_after_long_looks(reader: Reader) -> None:
    with reader.lend() as session:
        assert scalar(session, "SHOW statement_timeout") == "500ms"
        ours = session.info.get_parameters()
        assert (ours["tcp_user_timeout"], ours["application_name"]) == ("500", "taskbridge")
        before = scalar(session, PID)
    # From the sixth time on psycopg prepares what it can.
    for _ in range(7):
        assert undeclared_readers(reader, []) == {}
    with reader.lend() as session:
        assert (scalar(session, "SHOW statement_timeout"), scalar(session, PID)) == ("500ms", before)
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"), reader.lend():
            session.execute("SELECT pg_sleep(5)")


def test_a_silent_session_ends_a_look_and_the_next_one_has_another(reader: Reader) -> None:
    with reader.lend() as session:
        pid = scalar(session, PID)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(NoAnswer, match=r"has not answered for 1\.5 s"):
            check_version(reader)
        check_version(reader)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_after_an_error_the_next_look_begins_anew(reader: Reader, engine: Engine) -> None:
    record_invoice(engine, "acme", "1", {})
    with driving(reader) as session:
        pid = scalar(session, PID)
    with pytest.raises(psycopg.errors.UndefinedTable), driving(reader) as session, session.transaction():
        session.execute("SELECT * FROM nothing")
    with driving(reader) as session:
        assert scalar(session, PID) != pid
        assert scalar(session, "SELECT count(*) FROM taskbridge.records") == 1


def test_two_threads_have_the_session_one_after_the_other(reader: Reader) -> None:
    entered = threading.Event()

    def look() -> None:
        with reader.lend():
            entered.set()

    other = threading.Thread(target=look)
    with reader.lend() as session, session.transaction():
        other.start()
        assert not entered.wait(0.2)
    wait_until(entered.is_set, "the other thread's turn")
    other.join()


def test_a_reader_looks_into_its_own_schema(postgres_url: str) -> None:
    assert '"other".records' in queries(Reader(postgres_url, "other"))("count_unmatched")


FORKS = """
import os
import sys

from taskbridge.process.light_runtime import LightRuntime
from taskbridge.settings import Settings
from taskbridge.store.sessions import driving, scalar

runtime = LightRuntime(Settings(postgres_url=sys.argv[1], redis_url="redis://127.0.0.1:1/0"))


def session() -> object:
    with driving(runtime.database) as driver:
        return scalar(driver, "SELECT pg_backend_pid()")


before = session()
if os.fork() == 0:
    # It ends as programs do, and so drops what it has inherited.
    sys.exit()
os.wait()
assert session() == before
"""


def test_a_child_that_ends_leaves_the_session_of_its_parent_alone(postgres_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, postgres_url], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
