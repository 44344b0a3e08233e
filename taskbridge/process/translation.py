"""Errors of the servers, translated into one sentence with host, port and the next step; never a password.

No driver's error has the address each time, as after a time-out. So whoever connects notes it here.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Final, NamedTuple

import psycopg
import redis

from taskbridge.common.lost_connections import POSTGRES_AWAY, causes, is_broker_error, loaded_class, sqlstate
from taskbridge.common.texts import one_line
from taskbridge.errors import ForeignCluster, Unavailable
from taskbridge.store import FOREIGN_CLUSTER, FOREIGN_CLUSTER_STATE

__all__ = ["note_place", "place_of", "translated_errors"]

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
        return Unavailable(_at(_redis_text(error), _place_of_redis(error)))
    if is_broker_error(error):
        return Unavailable(_broker_text(error))
    said = _said(error)
    if said is None:
        return None
    if said.state == FOREIGN_CLUSTER_STATE:
        return ForeignCluster(FOREIGN_CLUSTER)
    text = _postgres_text(said)
    return None if text is None else Unavailable(_at(text, said.place if said.away else ""))


def _at(text: str, place: str) -> str:
    """Name the place at the end of what is wrong, before the remedy."""
    what, colon, remedy = text.partition(": ")
    return f"{what} ({place}){colon}{remedy}" if place else text


def place_of(server: str) -> str:
    """Return where "Postgres", "Redis" or "broker" is, as it was noted; "" where that is not known, or are several."""
    return next(iter(_places[server])) if len(_places[server]) == 1 else ""


def _place_of_redis(error: redis.RedisError) -> str:
    if not isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return ""
    told = re.search(r"connecting to ([^\s:]+:\d+)\.", str(error))
    return told[1] if told else place_of("Redis")


def _place_of_postgres(error: psycopg.Error) -> str:
    known = place_of("Postgres")
    if known or error.pgconn is None:
        return known
    try:
        host, port = error.pgconn.host.decode(), error.pgconn.port.decode()
    except psycopg.Error:  # it was closed
        return ""
    return _place(host, port) if host else ""


class _Said(NamedTuple):
    """What a driver of Postgres says; `away`: that the server, or the connection, may be gone."""

    state: str
    text: str
    away: bool
    place: str = ""


def _said(error: BaseException) -> _Said | None:
    """Return what a driver says: psycopg, or any that a producer's connection has."""
    for one in (error, getattr(error, "orig", None), error.__cause__ if _is_of_django(error) else None):
        if isinstance(one, psycopg.Error):
            is_away = isinstance(one, psycopg.OperationalError)
            return _Said(one.sqlstate or "", str(one), is_away, _place_of_postgres(one) if is_away else "")
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


def _redis_text(error: redis.RedisError) -> str:
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return "Redis refuses the password: correct it in TASKBRIDGE_REDIS_URL"
    if isinstance(error, redis.TimeoutError):
        return "Redis does not answer in time: look at its load, and at TASKBRIDGE_REDIS_URL (rediss:// is for TLS)"
    if "Error -" in text:  # the resolver's error numbers are negative, the system's positive
        return "the host in TASKBRIDGE_REDIS_URL is not known: correct it, or the name service"
    if "SSL" in text or "certificate" in text:
        return "Redis and this process do not agree on TLS: correct rediss:// and its options in TASKBRIDGE_REDIS_URL"
    if isinstance(error, redis.ConnectionError):
        return "Redis cannot be reached: start it, or correct TASKBRIDGE_REDIS_URL (`taskbridge doctor` checks it)"
    return f"Redis refuses the command: {text}"


def _broker_text(error: BaseException) -> str:
    if isinstance(error, loaded_class("kombu.exceptions", "VersionMismatch")):
        return (
            f"kombu {version('kombu')} does not go with redis-py {redis.__version__}: "
            "run `pip install 'kombu[redis]'`, which takes versions that do"
        )
    text = str(error).lower()
    if any(part in text for part in ("password", "authentication", "access_refused", "noauth")):
        return "the broker refuses the password: correct it in TASKBRIDGE_BROKER_URL"
    if not isinstance(error, loaded_class("kombu.exceptions", "OperationalError")):
        # What follows the first colon is the remedy.
        said = f"{type(error).__name__}, {one_line(str(error))}".replace(": ", ", ")
        return f"kombu refuses a message ({said}): let both sides use the same serializer, such as json"
    away = "the broker cannot be reached: start it, or correct TASKBRIDGE_BROKER_URL (`taskbridge doctor` checks it)"
    return _at(away, place_of("broker"))


# Parts of libpq's texts in English. A text in another language gets the last sentence of `_postgres_text`.
_POSTGRES_TEXTS: Final = (
    (("password authentication", "no password"), "refuses the password: correct it in TASKBRIDGE_POSTGRES_URL"),
    (("does not exist",), "has no such database or role: create it, or correct TASKBRIDGE_POSTGRES_URL"),
    (("pg_hba.conf",), "does not let this machine in: add it to pg_hba.conf"),
    (
        ("SSL", "sslmode", "certificate"),
        "and this process do not agree on TLS: correct sslmode in TASKBRIDGE_POSTGRES_URL",
    ),
    (
        ("for connection option", "invalid port number", 'value: "'),
        "cannot be asked, since libpq does not take a value in its URL: correct it in TASKBRIDGE_POSTGRES_URL",
    ),
    (
        ("gave it no session", "query_wait_timeout"),
        "let this process in, and gave it no session: raise default_pool_size of PgBouncer, or run fewer processes",
    ),
    (
        ("no more connections allowed",),
        "is behind a pooler that takes no more clients: raise its limit (max_client_conn of PgBouncer)",
    ),
    (("too many clients", "connection slots"), "has no connection left: raise max_connections, or run fewer processes"),
    (
        ("too many connections",),
        "has no connection left for this role or database: raise its CONNECTION LIMIT, or run fewer processes",
    ),
    (("not permitted to log in",), "does not let this role log in: run `ALTER ROLE ... LOGIN`, or take another role"),
    (
        ("not currently accepting connections", "not accept connections"),
        "lets nobody into this database: run `ALTER DATABASE ... ALLOW_CONNECTIONS true`, or name another",
    ),
    (("starting up", "shutting down", "recovery"), "is starting or stopping: try again in a moment"),
    (("idle-session timeout", "idle_timeout"), "ended the session, which was idle for too long: try again"),
    (("timeout",), "does not answer in time: look at its load, and at TASKBRIDGE_POSTGRES_URL"),
)


_AWAY_TEXTS: Final = (
    "refused",
    "No such file",
    "closed",
    "lost",
    "unreachable",
    "reset",
    "No route",
    "not receive data",
    "not send data",
    "Broken pipe",
    "no connection",
    "timed out",
    "is down",
    "EOF",
    "terminating connection",
    "crash of another",
)
"""What libpq and psycopg say where nobody listens, or a session has ended."""
_REFUSED: Final = ("28", "3D")
"""SQLSTATE classes of a login that is refused, and of a database that does not exist."""


def _postgres_text(said: _Said) -> str | None:
    """Say what keeps Postgres from being used; None where it is something else."""
    state, text, away, _ = said
    if state == "42P01":  # undefined table
        return "the database has no schema of TaskBridge: run `taskbridge migrate`"
    if state == "42703":  # undefined column
        return f"the database has the schema of another version ({text.splitlines()[0]}): run `taskbridge migrate`"
    if state in ("25006", "42501"):  # read only, no privilege
        return f"Postgres refuses the statement: {text.splitlines()[0]}"
    if not away:
        return None
    if state and not state.startswith((*POSTGRES_AWAY, *_REFUSED)):
        return f"Postgres ended the statement: {text.splitlines()[0]}"
    # psycopg 3.2.1 has the system's text alone.
    if any(part in text for part in ("resolve host", "Name or service not known", "name resolution")):
        return "the host of Postgres is not known: correct it in TASKBRIDGE_POSTGRES_URL, or the name service"
    for parts, sentence in _POSTGRES_TEXTS:
        if any(part in text for part in parts):
            return f"Postgres {sentence}"
    if any(part in text for part in _AWAY_TEXTS) or not text.strip():
        return (
            "Postgres cannot be reached: start it, or correct TASKBRIDGE_POSTGRES_URL (`taskbridge doctor` checks it)"
        )
    # What follows the first colon is the remedy.
    told = one_line(text.rpartition("FATAL:")[2]).replace(": ", ", ")
    return f"Postgres cannot be used ({told}): mend that, or correct TASKBRIDGE_POSTGRES_URL"
