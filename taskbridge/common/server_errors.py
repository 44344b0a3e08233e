"""What errors of Postgres, Redis and the broker mean: whether a server is unavailable, and a message with a remedy.

Every library has its own errors, and not every process loads every library. So classes are looked up by name: no error
comes from a library that is not loaded. Errors do not always contain the server's address, for example after a timeout,
so code that connects registers the address here. Messages contain no passwords.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import redis
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from taskbridge.common.texts import one_line
from taskbridge.errors import ForeignCluster, Unavailable

__all__ = [
    "FOREIGN_CLUSTER",
    "FOREIGN_CLUSTER_STATE",
    "POSTGRES_AWAY",
    "REDIS_AWAY",
    "REDIS_SWITCHED",
    "REDIS_URL",
    "SENTINEL_DOWN",
    "SENTINEL_LOGIN",
    "SENTINEL_NAME",
    "address_of",
    "causes",
    "is_away",
    "is_refused",
    "is_switched",
    "loaded_class",
    "note_address",
    "note_variable",
    "sqlstate",
    "translated_errors",
    "wrapped_error",
]

FOREIGN_CLUSTER: Final = (
    "the database was restored into another cluster, where its transaction ids mean nothing: stop all workers and "
    "producers, and run `taskbridge migrate --rebase`"
)
FOREIGN_CLUSTER_STATE: Final = "TB001"
"""The SQLSTATE that the triggers raise in that case."""

REDIS_URL: Final = "TASKBRIDGE_REDIS_URL"
"""The variable with the URL of the default Redis, which the remedies below name."""
REDIS_AWAY: Final = (redis.ConnectionError, redis.TimeoutError)
REDIS_SWITCHED: Final = (
    *(ReadOnlyError, BusyLoadingError, MasterDownError),
    *(ClusterDownError, MovedError, AskError, TryAgainError),
)
"""Errors of a server that is not, or not yet, the one to use; open connections may lead to it after a switchover.

A node of a cluster answers with the last two while a slot is being moved.
"""
_NESTED: Final = re.compile(r"\b(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MOVED|ASK|TRYAGAIN)\b")
"""The same errors in the text of a script's error, for which redis-py has no class, or none for a plain client."""
_REFUSED: Final = re.compile(r"\b(MISCONF|NOREPLICAS|OOM|BUSY)\b")
"""Errors of a server that temporarily refuses commands."""

SENTINEL_LOGIN: Final = "a Sentinel refuses the password"
SENTINEL_NAME: Final = "a Sentinel watches no primary of this name"
SENTINEL_DOWN: Final = "the Sentinels name no working primary"

POSTGRES_AWAY: Final = ("08", "53", "57P")
"""SQLSTATE classes of Postgres for a lost connection, a lack of resources, and a server shutdown."""
_LOGIN_REFUSED: Final = ("28", "3D")
"""SQLSTATE classes for a refused login and for a database that does not exist."""


class _Text(NamedTuple):
    """What to report if a library's message, in English, matches the pattern."""

    pattern: str
    problem: str
    remedy: str


_CORRECT: Final = "correct it in TASKBRIDGE_{}_URL"
_CORRECTED: Final = "fix that, or correct TASKBRIDGE_POSTGRES_URL"
_START: Final = "start it, or correct TASKBRIDGE_{}_URL (`taskbridge doctor` checks it)"


def _closed(server: str, schemes: str) -> _Text:
    return _Text(
        "closed by server|reset by peer|server unexpectedly closed",
        "closed the connection",
        f"if the port expects TLS, write {schemes} in TASKBRIDGE_{server}_URL; otherwise check the server's log",
    )


# The first match counts, so special patterns come first. A message in another language matches none.

_REDIS: Final = (
    _Text(
        SENTINEL_LOGIN,
        "is behind Sentinels that refuse the password",
        "correct sentinel_password in TASKBRIDGE_REDIS_URL",
    ),
    _Text(
        SENTINEL_NAME,
        "is behind Sentinels that watch no primary of this name",
        "correct master_name in TASKBRIDGE_REDIS_URL",
    ),
    _Text(SENTINEL_DOWN, "has no working primary, as its Sentinels say", "start it, or wait for the failover"),
    _Text("AuthenticationError|NOAUTH|WRONGPASS", "refuses the password", _CORRECT.format("REDIS")),
    _Text("TimeoutError", "does not answer in time", "check its load, and TASKBRIDGE_REDIS_URL (rediss:// is for TLS)"),
    # The resolver's error numbers are negative, the system's positive.
    _Text("Error -", "has an unknown host name", f"{_CORRECT.format('REDIS')}, or fix the name service"),
    _Text("SSL|certificate", "fails the TLS handshake", "correct rediss:// and its options in its URL"),
    _closed("REDIS", "rediss://"),
    _Text("ConnectionError", "cannot be reached", _START.format("REDIS")),
)
_BROKER: Final = (
    # It quotes the options of all connections.
    _Text(
        "masternotfounderror",
        "is behind Sentinels that name no working primary",
        "check them, and master_name and sentinel_kwargs in broker_transport_options",
    ),
    _Text(
        "password|authentication|access.?refused|noauth|not.?allowed",
        "refuses the password",
        "correct user, password and virtual host in TASKBRIDGE_BROKER_URL",
    ),
    _closed("BROKER", "rediss:// or amqps://"),
    _Text("operationalerror|amqperror", "cannot be reached", _START.format("BROKER")),
)
_POSTGRES: Final = (
    # psycopg 3.2.1 has only the system's text.
    _Text(
        "resolve host|Name or service not known|name resolution",
        "has an unknown host name",
        f"{_CORRECT.format('POSTGRES')}, or fix the name service",
    ),
    _Text("password authentication|no password", "refuses the password", _CORRECT.format("POSTGRES")),
    _Text(
        "root certificate file|weak sslmode",
        "has a certificate that cannot be verified, because there is no root certificate",
        "set sslrootcert in TASKBRIDGE_POSTGRES_URL to its file, or to system if it is a public one",
    ),
    # If the message has both, libpq has tried TLS too.
    _Text("pg_hba.conf.*(SSL encryption|SSL on)", "rejects connections from this machine", "add it to pg_hba.conf"),
    _Text(
        "pg_hba.conf.*(no encryption|SSL off)",
        "rejects connections from this machine without TLS",
        "set sslmode=require in TASKBRIDGE_POSTGRES_URL; if that is refused too, add the machine to pg_hba.conf",
    ),
    _Text("pg_hba.conf", "rejects connections from this machine", "add it to pg_hba.conf"),
    _Text(
        "SSL|sslmode|certificate|private key file",
        "fails the TLS handshake",
        "correct sslmode in TASKBRIDGE_POSTGRES_URL",
    ),
    _Text(
        '(database|role) ".*" does not exist',
        "has no such database or role",
        "create it, or correct TASKBRIDGE_POSTGRES_URL",
    ),
    _Text(
        'for connection option|invalid port number|value: "',
        "cannot be used, because libpq rejects a value in its URL",
        _CORRECT.format("POSTGRES"),
    ),
    _Text(
        "provided no session|query_wait_timeout",
        "accepted the connection but has no free session",
        "raise default_pool_size of PgBouncer, or run fewer processes",
    ),
    _Text(
        "no more connections allowed",
        "is behind a pooler that accepts no more clients",
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
        "run `ALTER ROLE ... LOGIN`, or use another role",
    ),
    _Text(
        "not currently accepting connections|not accept connections",
        "accepts no connections to this database",
        "run `ALTER DATABASE ... ALLOW_CONNECTIONS true`, or use another database",
    ),
    _Text("starting up|shutting down|recovery", "is starting or stopping", "try again in a moment"),
    _Text("idle-session timeout|idle_timeout", "ended the session, which was idle for too long", "try again"),
    _Text("timeout", "does not answer in time", "check its load, and TASKBRIDGE_POSTGRES_URL"),
    # The messages of libpq and psycopg if nothing listens, or if a session has ended; or an empty one.
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
    "25006": ("Postgres is read-only ({text})", "set TASKBRIDGE_POSTGRES_URL to the primary"),
    "42501": ("Postgres refuses the statement", "{text}"),
}


def _first_match(texts: Sequence[_Text], message: str) -> _Text | None:
    return next((text for text in texts if re.search(text.pattern, message)), None)


# Which errors mean that a server is unavailable.


def is_away(error: BaseException) -> bool:
    """Whether the error itself says that Redis, the broker, Postgres or any other server is unavailable."""
    if isinstance(error, (ConnectionError, TimeoutError, *REDIS_AWAY)):
        return True
    if isinstance(error, loaded_class("kombu.exceptions", "OperationalError")):
        return True
    if isinstance(error, loaded_class("sqlalchemy.exc", "DBAPIError")):
        wrapped: Any = error
        return bool(wrapped.connection_invalidated) or _is_postgres_away(wrapped.orig)
    return _is_postgres_away(error)


def _is_postgres_away(error: BaseException | None) -> bool:
    # psycopg raises subclasses for errors of the server, and OperationalError itself if the connection broke.
    state = sqlstate(error)
    return state.startswith(POSTGRES_AWAY) if state else type(error) is loaded_class("psycopg", "OperationalError")


def is_switched(reply: object) -> bool:
    """Whether the reply is an error of a server that is not the one to use."""
    return isinstance(reply, REDIS_SWITCHED) or (isinstance(reply, ResponseError) and bool(_NESTED.search(str(reply))))


def is_refused(error: object) -> bool:
    """Whether Redis refuses a command for a reason unrelated to it, and may accept it later."""
    return is_switched(error) or (isinstance(error, ResponseError) and bool(_REFUSED.search(str(error))))


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error; "" if it has none, as when the connection broke."""
    state = _attribute(error, "sqlstate")
    return state if isinstance(state, str) else ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of a library, then the error of its driver, and the causes of that."""
    while error is not None:
        yield error
        error = wrapped_error(error) or error.__cause__


def wrapped_error(error: BaseException | None) -> BaseException | None:
    """Return the driver's error that a SQLAlchemy error wraps."""
    wrapped = _attribute(error, "orig")
    return wrapped if isinstance(wrapped, BaseException) else None


def _attribute(error: object, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a foreign class may have a property of this name, which may raise anything
        return None


def loaded_class(module: str, name: str) -> Any:
    """Return a class of a library, or () if the library is not loaded: no object is an instance of ()."""
    loaded = sys.modules.get(module)
    return () if loaded is None else getattr(loaded, name)


# Where the servers are.

_addresses: Final = {server: set[str]() for server in ("Postgres", "Redis", "broker")}
"""The addresses that this process connects to."""


def note_address(server: str, hosts: str, ports: str | int) -> None:
    """Register the address of "Postgres", "Redis" or "broker" for error messages; they show it if there is only one.

    Args:
        server: which of the three.
        hosts: the host, several in the form of libpq (`a,b`), or the path of a socket.
        ports: the port, or one for each host.
    """
    several = str(ports).split(",")
    named = hosts.split(",")
    each = several if len(several) == len(named) else several[:1] * len(named)
    _addresses[server].add(", ".join(_address(host, port) for host, port in zip(named, each, strict=True)))


def _address(host: str, port: str) -> str:
    if host.startswith(("/", "@")):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(server: str) -> str:
    """Return the registered address of "Postgres", "Redis" or "broker"; "" if there is none, or more than one."""
    return next(iter(_addresses[server])) if len(_addresses[server]) == 1 else ""


_VARIABLE: Final = "taskbridge_variable"


class note_variable:  # noqa: N801 - used like a function
    """Note in the errors of redis-py that leave the block which variable has the URL of the server."""

    __slots__ = ("_variable",)

    def __init__(self, variable: str) -> None:
        self._variable = variable

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Note the variable in the error, if there is one."""
        if isinstance(error, redis.RedisError):
            setattr(error, _VARIABLE, self._variable)


# The translation.


class translated_errors:  # noqa: N801 - used like a function
    """Translate errors of Postgres, Redis and the broker into `Unavailable`, or its subclass `ForeignCluster`.

    Commands and producers use it. A run does not translate errors: it fails and is retried.
    """

    # A generator with `contextmanager` would cost each event three times as much.
    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the translation of `error`, if there is one."""
        meaning = None if error is None else _meaning(error)
        if meaning is not None:
            raise meaning from error


def _meaning(error: BaseException) -> Unavailable | None:
    if isinstance(error, redis.RedisError):
        names = " ".join(kind.__name__ for kind in type(error).__mro__)
        text = _first_match(_REDIS, f"{names} {error}")
        if text is None:
            return Unavailable("Redis refuses the command", str(error))
        remedy = text.remedy.replace(REDIS_URL, getattr(error, _VARIABLE, REDIS_URL))
        return _unavailable("Redis", text._replace(remedy=remedy), _address_of_redis(error))
    if isinstance(
        error, (loaded_class("kombu.exceptions", "KombuError"), loaded_class("amqp.exceptions", "AMQPError"))
    ):
        return _of_broker(error)
    failure = _postgres_failure(error)
    if failure is None:
        return None
    if failure.state == FOREIGN_CLUSTER_STATE:
        return ForeignCluster(FOREIGN_CLUSTER)
    return _of_postgres(failure)


def _unavailable(server: str, text: _Text, address: str = "") -> Unavailable:
    return Unavailable(f"{server} {text.problem}{f' ({address})' if address else ''}", text.remedy)


def _address_of_redis(error: redis.RedisError) -> str:
    if not isinstance(error, REDIS_AWAY):
        return ""
    named = re.search(r"connecting to ([^\s:]+:\d+)\.", str(error))
    return named[1] if named else address_of("Redis")


def _of_broker(error: BaseException) -> Unavailable:
    if isinstance(error, loaded_class("kombu.exceptions", "VersionMismatch")):
        return Unavailable(
            f"kombu {version('kombu')} does not work with redis-py {redis.__version__}",
            "run `pip install 'kombu[redis]'`, which installs versions that do",
        )
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = _first_match(_BROKER, f"{names} {error}".lower())
    if text is None:
        reason = f"{type(error).__name__}, {one_line(str(error))}"
        return Unavailable(f"kombu refuses a message ({reason})", "use the same serializer on both sides, such as json")
    return _unavailable("the broker", text, "" if "password" in text.problem else address_of("broker"))


class _PostgresFailure(NamedTuple):
    """An error of a Postgres driver; `away`: the server or the connection may be gone."""

    state: str
    text: str
    away: bool
    address: str = ""


def _postgres_failure(error: BaseException) -> _PostgresFailure | None:
    """Return the failure that psycopg, or any driver of a producer's connection, reports; None: it is no such error."""
    for each in (error, getattr(error, "orig", None), error.__cause__ if _is_of_django(error) else None):
        if isinstance(each, loaded_class("psycopg", "Error")):
            is_away = isinstance(each, loaded_class("psycopg", "OperationalError"))
            return _PostgresFailure(sqlstate(each), str(each), is_away, _address_of_postgres(each) if is_away else "")
    kind = type(error)
    is_wrapped = _is_of_django(error) or isinstance(error, loaded_class("sqlalchemy.exc", "DBAPIError"))
    if not is_wrapped and kind.__module__.partition(".")[0] != "asyncpg":
        return None
    text = str(getattr(error, "orig", error))
    states = (sqlstate(cause) or getattr(cause, "pgcode", None) for cause in causes(error))
    state = next(filter(None, states), "")
    is_closed = kind.__name__ == "OperationalError" or (kind.__name__ == "InterfaceError" and "closed" in text)
    return _PostgresFailure(state, text, state.startswith(POSTGRES_AWAY) if state else is_closed)


def _is_of_django(error: BaseException) -> bool:
    return type(error).__module__ == "django.db.utils"


def _address_of_postgres(error: Any) -> str:
    known = address_of("Postgres")
    if known or error.pgconn is None:
        return known
    try:
        host, port = error.pgconn.host.decode(), error.pgconn.port.decode()
    except loaded_class("psycopg", "Error"):  # it was closed
        return ""
    return _address(host, port) if host else ""


def _of_postgres(failure: _PostgresFailure) -> Unavailable | None:
    """Return why Postgres cannot be used; None if the error is about something else."""
    state, text, away, address = failure
    first_line = text.splitlines()[0] if text else ""
    if state in _POSTGRES_STATES:
        what, remedy = (part.replace("{text}", first_line) for part in _POSTGRES_STATES[state])
        return Unavailable(what, remedy)
    if not away:
        return None
    if state and not state.startswith((*POSTGRES_AWAY, *_LOGIN_REFUSED)) and "statement pooling mode" not in text:
        return Unavailable("Postgres ended the statement", first_line)
    if known := _first_match(_POSTGRES, text):
        return _unavailable("Postgres", known, address)
    reason = one_line(text.rpartition("FATAL:")[2])
    return _unavailable("Postgres", _Text("", f"cannot be used ({reason})", _CORRECTED), address)
