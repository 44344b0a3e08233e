"""One place says which errors mean that a server is away, and tells them with the server's address and no password."""

from __future__ import annotations

import kombu.exceptions
import psycopg
import pytest
import redis
from sqlalchemy.exc import DBAPIError, OperationalError

from taskbridge.common import server_errors
from taskbridge.common.server_errors import is_away, is_switched, translated_errors
from taskbridge.declaring.failures import is_downstream
from taskbridge.errors import Unavailable
from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings

AWAY: tuple[Exception, ...] = (
    ConnectionRefusedError(),
    TimeoutError(),
    redis.ConnectionError(),
    redis.TimeoutError(),
    redis.BusyLoadingError(),
    kombu.exceptions.OperationalError(),
    psycopg.OperationalError(),
    psycopg.errors.AdminShutdown(),
    psycopg.errors.TooManyConnections(),
    psycopg.errors.ConnectionException(),
    OperationalError("", None, psycopg.OperationalError()),
    OperationalError("", None, psycopg.errors.CannotConnectNow()),
    DBAPIError("", None, psycopg.errors.DataError(), connection_invalidated=True),
)
THERE: tuple[Exception, ...] = (
    ValueError(),
    OSError(),
    redis.ResponseError("WRONGTYPE"),
    kombu.exceptions.EncodeError(),
    psycopg.errors.UniqueViolation(),
    psycopg.errors.QueryCanceled(),
    psycopg.errors.DeadlockDetected(),
    OperationalError("", None, psycopg.errors.LockNotAvailable()),
    DBAPIError("", None, psycopg.errors.DataError()),
)


TOLD = (redis.RedisError, kombu.exceptions.KombuError, OperationalError)


@pytest.mark.parametrize("error", [*AWAY, *THERE], ids=repr)
def test_a_server_that_is_away_and_one_that_refuses_something(error: Exception) -> None:
    assert is_away(error) is is_downstream(error) is (error in AWAY)
    if error in AWAY and isinstance(error, TOLD):
        with pytest.raises(Unavailable), translated_errors():
            raise error


@pytest.mark.parametrize(
    ("reply", "switched"),
    [
        (redis.exceptions.ReadOnlyError(), True),
        (redis.exceptions.ClusterDownError(""), True),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), True),
        (redis.exceptions.BusyLoadingError(), True),
        (redis.exceptions.MovedError("3999 127.0.0.1:6381"), True),
        (redis.ResponseError("ERR user_script:7: MASTERDOWN Link with MASTER is down."), True),
        (redis.ResponseError("ERR user_script:7: MOVED 3999 127.0.0.1:6381"), True),
        (redis.ResponseError("ERR user_script:7: READONLY You can't write against a read only replica."), True),
        (redis.ResponseError("ERR user_script:7: unknown command"), False),
        ([1, "READONLY"], False),
    ],
    ids=repr,
)
def test_a_server_that_is_not_the_one_to_talk_to_any_more(reply: object, switched: bool) -> None:
    assert is_switched(reply) is switched


NO_ENTRY = 'connection failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "u", database "d", '


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (f"{NO_ENTRY}no encryption", "sslmode=require"),
        (f"{NO_ENTRY}SSL encryption\n{NO_ENTRY}no encryption", "add it to pg_hba.conf"),
    ],
)
def test_tls_is_the_remedy_only_where_it_was_not_tried(text: str, remedy: str) -> None:
    assert remedy in told(psycopg.OperationalError(text)).remedy


PASSWORD = "s3cr3t@Pa55"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has connected to nothing."""
    monkeypatch.setattr(server_errors, "_addresses", {"Postgres": set(), "Redis": set()})


def told(error: Exception) -> Unavailable:
    with pytest.raises(Unavailable) as caught, translated_errors():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:s3cr3t%40Pa55@db.example/d", "db.example:5432"),
        ("postgresql://u:s3cr3t%40Pa55@[::1]:1/d", "[::1]:1"),
        ("postgresql:///d?host=/var/run/postgresql", "/var/run/postgresql"),
        ("postgresql://u:s3cr3t%40Pa55@/d?host=a:1&host=b:2", "a:1, b:2"),
        ("rediss://:s3cr3t%40Pa55@gate.example/0", "gate.example:6379"),
        ("redis://:s3cr3t%40Pa55@[::1]:1/0", "[::1]:1"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_time_out_whose_error_has_no_address_is_told_with_it(url: str, place: str) -> None:
    if url.startswith("postgresql"):
        assert Runtime(Settings(postgres_url=url)).engine is not None
        timeout: Exception = psycopg.OperationalError("connection timeout expired")
    else:
        assert Runtime(Settings(redis_url=url)).redis is not None
        timeout = redis.TimeoutError("Timeout reading from socket")
    assert told(timeout).what == f"{'Postgres' if 'postgres' in url else 'Redis'} does not answer in time ({place})"


@pytest.mark.usefixtures("alone")
def test_a_process_with_two_gates_names_the_one_that_the_error_is_of() -> None:
    for port in (1, 2):
        assert Runtime(Settings(redis_url=f"redis://:{PASSWORD}@127.0.0.1:{port}/0")).redis is not None
        with pytest.raises(Unavailable) as caught, translated_errors():
            Runtime(Settings(redis_url=f"redis://127.0.0.1:{port}/0")).redis.ping()
        assert caught.value.what == f"Redis cannot be reached (127.0.0.1:{port})"
    assert told(redis.TimeoutError("Timeout reading from socket")).what == "Redis does not answer in time"
