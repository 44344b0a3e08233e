"""What errors of Postgres, Redis and the broker mean: whether a server is away, and one sentence with the next step.

Every library has errors of its own, and not every process loads every library. So a class is looked up by name: no
error comes from a library that is not loaded. No error has the server's address each time, as after a time-out, so
whoever connects notes it here. A sentence has no password.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
)

from taskbridge.common.texts import one_line
from taskbridge.errors import ForeignCluster, Unavailable

__all__ = [
    "FOREIGN_CLUSTER",
    "FOREIGN_CLUSTER_STATE",
    "POSTGRES_AWAY",
    "REDIS_AWAY",
    "REDIS_SWITCHED",
    "causes",
    "is_away",
    "is_refused",
    "is_switched",
    "loaded_class",
    "note_place",
    "place_of",
    "sqlstate",
    "translated_errors",
    "wrapped_error",
]

FOREIGN_CLUSTER: Final = (
    "the database was restored into another cluster, where its transaction ids mean nothing: stop all workers and run "
    "`taskbridge migrate --rebase`"
)
FOREIGN_CLUSTER_STATE: Final = "TB001"
"""The SQLSTATE with which the triggers refuse."""

REDIS_AWAY: Final = (redis.ConnectionError, redis.TimeoutError)
REDIS_SWITCHED: Final = (ReadOnlyError, BusyLoadingError, MasterDownError, ClusterDownError, MovedError)
"""Errors of a server that is not, or not yet, the one to talk to. An open connection leads to it after a switchover."""
_NESTED: Final = re.compile(r"\b(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MOVED)\b")
"""The same errors in the text of a script's error, for which redis-py has no class."""
_REFUSED: Final = re.compile(r"\b(MISCONF|NOREPLICAS|OOM|BUSY)\b")
"""Errors of a server that refuses commands for a while."""

POSTGRES_AWAY: Final = ("08", "53", "57P")
"""SQLSTATE classes of Postgres for a lost connection, a lack of resources, and a server that stops."""
_LOGIN_REFUSED: Final = ("28", "3D")
"""SQLSTATE classes of a login that is refused, and of a database that does not exist."""


class _Text(NamedTuple):
    """What people are told if a library's text, in English, has the pattern."""

    pattern: str
    said: str
    remedy: str


_CORRECT: Final = "correct it in TASKBRIDGE_{}_URL"
_CORRECTED: Final = "mend that, or correct TASKBRIDGE_POSTGRES_URL"
_START: Final = "start it, or correct TASKBRIDGE_{}_URL (`taskbridge doctor` checks it)"

# The first pattern that is found counts, so the special ones come first. A text in another language matches none.

_REDIS: Final = (
    _Text("AuthenticationError|NOAUTH|WRONGPASS", "refuses the password", _CORRECT.format("REDIS")),
    _Text(
        "TimeoutError",
        "does not answer in time",
        "look at its load, and at TASKBRIDGE_REDIS_URL (rediss:// is for TLS)",
    ),
    # The resolver's error numbers are negative, the system's positive.
    _Text("Error -", "is at a host that is not known", f"{_CORRECT.format('REDIS')}, or the name service"),
    _Text("SSL|certificate", "and this process do not agree on TLS", "correct rediss:// and its options in its URL"),
    _Text(
        "closed by server|reset by peer",
        "closed the connection",
        "write rediss:// in TASKBRIDGE_REDIS_URL if the port is for TLS; else its log says why",
    ),
    _Text("ConnectionError", "cannot be reached", _START.format("REDIS")),
)
_BROKER: Final = (
    _Text(
        "password|authentication|access.?refused|noauth|not.?allowed",
        "refuses the password",
        "correct user, password and virtual host in TASKBRIDGE_BROKER_URL",
    ),
    _Text(
        "closed by server|reset by peer|server unexpectedly closed",
        "closed the connection",
        "write rediss:// or amqps:// in TASKBRIDGE_BROKER_URL if the port is for TLS; else its log says why",
    ),
    _Text("operationalerror|amqperror", "cannot be reached", _START.format("BROKER")),
)
_POSTGRES: Final = (
    # psycopg 3.2.1 has the system's text alone.
    _Text(
        "resolve host|Name or service not known|name resolution",
        "is at a host that is not known",
        f"{_CORRECT.format('POSTGRES')}, or the name service",
    ),
    _Text("password authentication|no password", "refuses the password", _CORRECT.format("POSTGRES")),
    _Text(
        "root certificate file|weak sslmode",
        "has a certificate that cannot be checked, because no root certificate is known",
        "name its file as sslrootcert in TASKBRIDGE_POSTGRES_URL, or sslrootcert=system for a public one",
    ),
    # libpq has asked with TLS too where it says both.
    _Text("pg_hba.conf.*(SSL encryption|SSL on)", "does not let this machine in", "add it to pg_hba.conf"),
    _Text(
        "pg_hba.conf.*(no encryption|SSL off)",
        "does not let this machine in without TLS",
        "set sslmode=require in TASKBRIDGE_POSTGRES_URL; if that is refused too, add the machine to pg_hba.conf",
    ),
    _Text("pg_hba.conf", "does not let this machine in", "add it to pg_hba.conf"),
    _Text(
        "SSL|sslmode|certificate|private key file",
        "and this process do not agree on TLS",
        "correct sslmode in TASKBRIDGE_POSTGRES_URL",
    ),
    _Text(
        '(database|role) ".*" does not exist',
        "has no such database or role",
        "create it, or correct TASKBRIDGE_POSTGRES_URL",
    ),
    _Text(
        'for connection option|invalid port number|value: "',
        "cannot be asked, since libpq does not take a value in its URL",
        _CORRECT.format("POSTGRES"),
    ),
    _Text(
        "gave it no session|query_wait_timeout",
        "let this process in, and gave it no session",
        "raise default_pool_size of PgBouncer, or run fewer processes",
    ),
    _Text(
        "no more connections allowed",
        "is behind a pooler that takes no more clients",
        "raise its limit (max_client_conn of PgBouncer)",
    ),
    _Text("statement pooling mode", "is behind a pooler that allows no transactions", "set pool_mode = transaction"),
    _Text(
        "too many clients|connection slots",
        "has no connection left",
        "raise max_connections, or run fewer processes",
    ),
    _Text(
        "too many connections",
        "has no connection left for this role or database",
        "raise its CONNECTION LIMIT, or run fewer processes",
    ),
    _Text(
        "not permitted to log in",
        "does not let this role log in",
        "run `ALTER ROLE ... LOGIN`, or take another role",
    ),
    _Text(
        "not currently accepting connections|not accept connections",
        "lets nobody into this database",
        "run `ALTER DATABASE ... ALLOW_CONNECTIONS true`, or name another",
    ),
    _Text("starting up|shutting down|recovery", "is starting or stopping", "try again in a moment"),
    _Text("idle-session timeout|idle_timeout", "ended the session, which was idle for too long", "try again"),
    _Text("timeout", "does not answer in time", "look at its load, and at TASKBRIDGE_POSTGRES_URL"),
    # What libpq and psycopg say where nobody listens, or a session has ended; or nothing at all.
    _Text(
        r"refused|No such file|closed|lost|unreachable|reset|No route|not receive data|not send data|Broken pipe"
        r"|no connection|timed out|is down|EOF|terminating connection|crash of another|^\s*$",
        "cannot be reached",
        _START.format("POSTGRES"),
    ),
)
_POSTGRES_STATES: Final = {
    "42P01": ("the database has no schema of TaskBridge", "run `taskbridge migrate`"),
    "42703": ("the database has the schema of another version ({text})", "run `taskbridge migrate`"),
    "25006": ("Postgres takes no writes ({text})", "let TASKBRIDGE_POSTGRES_URL name the primary"),
    "42501": ("Postgres refuses the statement", "{text}"),
}


def _found(texts: Sequence[_Text], text: str) -> _Text | None:
    return next((one for one in texts if re.search(one.pattern, text)), None)


# Which errors say that a server is away.


def is_away(error: BaseException) -> bool:
    """Whether the error itself says that Redis, the broker, Postgres or any other server cannot be used now."""
    if isinstance(error, (ConnectionError, TimeoutError, *REDIS_AWAY)):
        return True
    if isinstance(error, loaded_class("kombu.exceptions", "OperationalError")):
        return True
    if isinstance(error, loaded_class("sqlalchemy.exc", "DBAPIError")):
        wrapped: Any = error
        return bool(wrapped.connection_invalidated) or _is_postgres_away(wrapped.orig)
    return _is_postgres_away(error)


def _is_postgres_away(error: BaseException | None) -> bool:
    # psycopg raises subclasses for what the server says, and OperationalError itself where the connection broke.
    state = sqlstate(error)
    return state.startswith(POSTGRES_AWAY) if state else type(error) is loaded_class("psycopg", "OperationalError")


def is_switched(reply: object) -> bool:
    """Whether the reply is an error of a server that is not the one to talk to."""
    return isinstance(reply, REDIS_SWITCHED) or (isinstance(reply, ResponseError) and bool(_NESTED.search(str(reply))))


def is_refused(error: object) -> bool:
    """Whether Redis refuses a command for a reason that has nothing to do with it, and may take it later."""
    return is_switched(error) or (isinstance(error, ResponseError) and bool(_REFUSED.search(str(error))))


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error; "" where it has none, as when the connection broke."""
    try:
        state = getattr(error, "sqlstate", None)
    except Exception:  # a class that is not ours may have a property of this name, which may raise anything
        state = None
    return state if isinstance(state, str) else ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error of a library, then what its driver raised, and what that was raised from."""
    while error is not None:
        yield error
        error = wrapped_error(error) or error.__cause__


def wrapped_error(error: BaseException | None) -> BaseException | None:
    """Return the driver's error that SQLAlchemy's holds."""
    try:
        wrapped = getattr(error, "orig", None)
    except Exception:  # a class that is not ours may have a property of this name, which may raise anything
        wrapped = None
    return wrapped if isinstance(wrapped, BaseException) else None


def loaded_class(module: str, name: str) -> Any:
    """Return a class of a library, or () where the library is not loaded: no object is an instance of ()."""
    found = sys.modules.get(module)
    return () if found is None else getattr(found, name)


# Where the servers are.

_places: Final = {server: set[str]() for server in ("Postgres", "Redis", "broker")}
"""Where this process connects to."""


def note_place(server: str, hosts: str, ports: str | int) -> None:
    """Note where "Postgres", "Redis" or "broker" is: what is said of it names the place, if there is one alone.

    Args:
        server: which of the three.
        hosts: the host, several as libpq takes them (`a,b`), or the path of a socket.
        ports: the port, or one for each host.
    """
    several = str(ports).split(",")
    named = hosts.split(",")
    each = several if len(several) == len(named) else several[:1] * len(named)
    _places[server].add(", ".join(_place(host, port) for host, port in zip(named, each, strict=True)))


def _place(host: str, port: str) -> str:
    if host.startswith(("/", "@")):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def place_of(server: str) -> str:
    """Return where "Postgres", "Redis" or "broker" is, as it was noted; "" where that is not known, or are several."""
    return next(iter(_places[server])) if len(_places[server]) == 1 else ""


# The translation.


class translated_errors:  # noqa: N801 - used as a function is
    """Translate errors of Postgres, Redis and the broker into `Unavailable`, or its subclass `ForeignCluster`.

    For the calls that people and producers make. A run does not translate them: it fails and is tried again.
    """

    # Not a generator with `contextmanager`, which costs each event three times as much.
    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise what `error` means, if that is known."""
        meaning = None if error is None else _meaning(error)
        if meaning is not None:
            raise meaning from error


def _meaning(error: BaseException) -> Unavailable | None:
    if isinstance(error, redis.RedisError):
        names = " ".join(kind.__name__ for kind in type(error).__mro__)
        found = _found(_REDIS, f"{names} {error}")
        if found is None:
            return Unavailable("Redis refuses the command", str(error))
        return _unavailable("Redis", found, _place_of_redis(error))
    if isinstance(
        error, (loaded_class("kombu.exceptions", "KombuError"), loaded_class("amqp.exceptions", "AMQPError"))
    ):
        return _of_broker(error)
    said = _said(error)
    if said is None:
        return None
    if said.state == FOREIGN_CLUSTER_STATE:
        return ForeignCluster(FOREIGN_CLUSTER)
    return _of_postgres(said)


def _unavailable(server: str, text: _Text, place: str = "") -> Unavailable:
    return Unavailable(f"{server} {text.said}{f' ({place})' if place else ''}", text.remedy)


def _place_of_redis(error: redis.RedisError) -> str:
    if not isinstance(error, REDIS_AWAY):
        return ""
    named = re.search(r"connecting to ([^\s:]+:\d+)\.", str(error))
    return named[1] if named else place_of("Redis")


def _of_broker(error: BaseException) -> Unavailable:
    if isinstance(error, loaded_class("kombu.exceptions", "VersionMismatch")):
        return Unavailable(
            f"kombu {version('kombu')} does not go with redis-py {redis.__version__}",
            "run `pip install 'kombu[redis]'`, which takes versions that do",
        )
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    found = _found(_BROKER, f"{names} {error}".lower())
    if found is None:
        said = f"{type(error).__name__}, {one_line(str(error))}"
        return Unavailable(f"kombu refuses a message ({said})", "let both sides use the same serializer, such as json")
    return _unavailable("the broker", found, "" if "password" in found.said else place_of("broker"))


class _Said(NamedTuple):
    """What a driver of Postgres says; `away`: that the server, or the connection, may be gone."""

    state: str
    text: str
    away: bool
    place: str = ""


def _said(error: BaseException) -> _Said | None:
    """Return what a driver says: psycopg, or any that a producer's connection has."""
    for one in (error, getattr(error, "orig", None), error.__cause__ if _is_of_django(error) else None):
        if isinstance(one, loaded_class("psycopg", "Error")):
            is_away = isinstance(one, loaded_class("psycopg", "OperationalError"))
            return _Said(sqlstate(one), str(one), is_away, _place_of_postgres(one) if is_away else "")
    kind = type(error)
    is_wrapped = _is_of_django(error) or isinstance(error, loaded_class("sqlalchemy.exc", "DBAPIError"))
    if not is_wrapped and kind.__module__.partition(".")[0] != "asyncpg":
        return None
    text = str(getattr(error, "orig", error))
    state = next((found for one in causes(error) if (found := sqlstate(one) or getattr(one, "pgcode", None))), "")
    is_closed = kind.__name__ == "OperationalError" or (kind.__name__ == "InterfaceError" and "closed" in text)
    return _Said(state, text, state.startswith(POSTGRES_AWAY) if state else is_closed)


def _is_of_django(error: BaseException) -> bool:
    return type(error).__module__ == "django.db.utils"


def _place_of_postgres(error: Any) -> str:
    known = place_of("Postgres")
    if known or error.pgconn is None:
        return known
    try:
        host, port = error.pgconn.host.decode(), error.pgconn.port.decode()
    except loaded_class("psycopg", "Error"):  # it was closed
        return ""
    return _place(host, port) if host else ""


def _of_postgres(said: _Said) -> Unavailable | None:
    """Say what keeps Postgres from being used; None where it is something else."""
    state, text, away, place = said
    first_line = text.splitlines()[0] if text else ""
    if state in _POSTGRES_STATES:
        what, remedy = (part.replace("{text}", first_line) for part in _POSTGRES_STATES[state])
        return Unavailable(what, remedy)
    if not away:
        return None
    if state and not state.startswith((*POSTGRES_AWAY, *_LOGIN_REFUSED)) and "statement pooling mode" not in text:
        return Unavailable("Postgres ended the statement", first_line)
    if found := _found(_POSTGRES, text):
        return _unavailable("Postgres", found, place)
    told = one_line(text.rpartition("FATAL:")[2])
    return _unavailable("Postgres", _Text("", f"cannot be used ({told})", _CORRECTED), place)
