"""The pool of sessions: where a URL leads to, and what limits a statement, whoever asks."""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.store import check_version, connect, record_invoice, undeclared_readers
from taskbridge.store.db import checked_out, parameters_of, scalar
from tests.ending import ended

PID = "SELECT pg_backend_pid()"
WHOLE = {"user": "user", "password": "password", "host": "host", "port": "5432", "dbname": "database"}
BOTH = {"user": "user", "password": "password", "host": "a,b", "port": "1,2", "dbname": "database"}
HOST = {"host": "host", "dbname": "database"}


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgresql://user:password@host:5432/database", WHOLE),
        ("postgres://host/database", HOST),
        ("postgresql+psycopg://user@host:1/", {"user": "user", "host": "host", "port": "1"}),
        (
            "postgresql://user:a/b#c?d%40%2F%@host/a+b%20c",
            {**HOST, "user": "user", "password": "a/b#c?d@/%", "dbname": "a+b c"},
        ),
        ("postgresql://user:password@[::1]:5432/database", {**WHOLE, "host": "::1"}),
        (
            "postgresql:///database?host=/run/postgresql&user=u",
            {"dbname": "database", "host": "/run/postgresql", "user": "u"},
        ),
        ("postgresql://%2Frun%2Fpostgresql/database", {"dbname": "database", "host": "/run/postgresql"}),
        ("postgresql://host/database?options=-c+datestyle%3DISO", {**HOST, "options": "-c datestyle=ISO"}),
        ("postgresql://user:password@/database?host=a:1&host=b:2", BOTH),
        ("postgresql://user:password@a:1,b:2/database", BOTH),
        ("postgresql://user:password@a,[::1]:2/database", {**BOTH, "host": "a,::1", "port": ",2"}),
        (
            "postgresql://user:password@a:1,b:2/database?target_session_attrs=read-write",
            {**BOTH, "target_session_attrs": "read-write"},
        ),
        ("postgresql://host/database?prepare_threshold=none", {**HOST, "prepare_threshold": None}),
        ("postgresql://host/database?prepare_threshold=0", {**HOST, "prepare_threshold": 0}),
    ],
)
def test_a_url_is_read_as_libpq_and_sqlalchemy_write_it(url: str, parameters: dict[str, Any]) -> None:
    assert parameters_of(url) == parameters
    # SQLAlchemy's form describes an engine where it can, and never stops it.
    assert connect(url).url.drivername == "postgresql+psycopg"


def test_of_several_hosts_the_one_that_takes_writes_is_used(servers: Servers) -> None:
    where = make_url(servers.postgres_url)
    at = f"{where.host}:{where.port}"
    url = f"postgresql://{where.username}:{where.password}@127.0.0.1:1,{at}/postgres?target_session_attrs=read-write"
    engine = connect(url)
    with checked_out(engine) as driver:
        assert scalar(driver, "SELECT current_database()") == "postgres"
    engine.dispose()


@pytest.mark.parametrize("url", ["postgresql://host:port/x", "postgresql://a:1,b:x/x", "nothing", "://nothing"])
def test_a_url_that_cannot_be_read_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        connect(url)
    assert url not in str(refused.value)


def test_a_session_has_its_limits_again_after_a_long_look(bounded: Engine) -> None:
    with checked_out(bounded) as session:
        assert scalar(session, "SHOW statement_timeout") == "500ms"
        ours = session.info.get_parameters()
        assert (ours["tcp_user_timeout"], ours["application_name"]) == ("500", "taskbridge")
        before = scalar(session, PID)
    # From the sixth time on psycopg prepares what it can.
    for _ in range(7):
        assert undeclared_readers(bounded, []) == {}
    with checked_out(bounded) as session:
        assert (scalar(session, "SHOW statement_timeout"), scalar(session, PID)) == ("500ms", before)
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"), checked_out(bounded) as session:
        session.execute("SELECT pg_sleep(5)")


def test_after_an_error_the_next_look_begins_anew(bounded: Engine, engine: Engine) -> None:
    record_invoice(engine, "acme", "1", {})
    with checked_out(bounded) as session:
        pid = scalar(session, PID)
    with pytest.raises(psycopg.errors.UndefinedTable), checked_out(bounded) as session, session.transaction():
        session.execute("SELECT * FROM nothing")
    with checked_out(bounded) as session:
        assert scalar(session, PID) != pid
        assert scalar(session, "SELECT count(*) FROM taskbridge.records") == 1


FORKS = """
import os
import sys

from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings
from taskbridge.store.db import checked_out, scalar

runtime = Runtime(Settings(postgres_url=sys.argv[1], redis_url="redis://127.0.0.1:1/0"))


def session() -> object:
    with checked_out(runtime.engine) as driver:
        return scalar(driver, "SELECT pg_backend_pid()")


before = session()
if os.fork() == 0:
    # It ends as programs do, and so drops what it has inherited.
    sys.exit()
os.wait()
assert session() == before
"""


def test_a_child_that_ends_leaves_the_session_of_its_parent_alone(postgres_url: str) -> None:
    done = ended([sys.executable, "-c", FORKS, postgres_url])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_postgres_that_is_too_old_is_refused_with_the_remedy(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    check_version(engine)
    monkeypatch.setattr("taskbridge.store.db.OLDEST_POSTGRES", 99)
    with pytest.raises(Unavailable, match=r"PostgreSQL \d+ is too old: upgrade it to 99 or newer"):
        check_version(engine)
