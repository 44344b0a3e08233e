"""One place says which errors mean that a server is away; each of its users agrees on the same examples."""

from __future__ import annotations

import amqp.exceptions
import kombu.exceptions
import psycopg
import pytest
import redis
from sqlalchemy.exc import DBAPIError, OperationalError

from taskbridge.common.server_errors import is_away, is_switched, translated_errors
from taskbridge.declaring.failures import is_downstream
from taskbridge.errors import Unavailable

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


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_a_server_that_is_away(error: Exception) -> None:
    assert is_away(error)
    assert is_downstream(error)


TOLD = (redis.RedisError, kombu.exceptions.KombuError, OperationalError)


@pytest.mark.parametrize("error", [one for one in AWAY if isinstance(one, TOLD)], ids=repr)
def test_a_server_that_is_away_is_told_to_people_as_that(error: Exception) -> None:
    with pytest.raises(Unavailable), translated_errors():
        raise error


@pytest.mark.parametrize("error", THERE, ids=repr)
def test_a_server_that_is_there_and_refuses_something(error: Exception) -> None:
    assert not is_away(error)
    assert not is_downstream(error)


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
LOGIN = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


@pytest.mark.parametrize(
    ("error", "said", "remedy"),
    [
        (
            psycopg.OperationalError('root certificate file "/root/.postgresql/root.crt" does not exist\nEither ...'),
            "Postgres has a certificate that cannot be verified",
            "sslrootcert",
        ),
        (
            psycopg.OperationalError('connection failed: FATAL:  database "d" does not exist'),
            "Postgres has no such database or role",
            "create it",
        ),
        (
            psycopg.OperationalError(f"{NO_ENTRY}no encryption"),
            "rejects connections from this machine without TLS",
            "sslmode=require",
        ),
        (
            psycopg.OperationalError(f"{NO_ENTRY}SSL encryption\n{NO_ENTRY}no encryption"),
            "Postgres rejects connections from this machine",
            "add it to pg_hba.conf",
        ),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT"), "Postgres is read-only", "the primary"),
        (redis.ConnectionError("Connection closed by server."), "Redis closed the connection", "rediss://"),
        (amqp.exceptions.AccessRefused(LOGIN), "the broker refuses the password", "TASKBRIDGE_BROKER_URL"),
        (kombu.exceptions.OperationalError("timed out at port 40312"), "the broker cannot be reached", "start it"),
    ],
)
def test_what_a_library_says_becomes_a_sentence_and_a_remedy(error: Exception, said: str, remedy: str) -> None:
    with pytest.raises(Unavailable) as caught, translated_errors():
        raise error
    assert said in caught.value.what
    assert remedy in caught.value.remedy
