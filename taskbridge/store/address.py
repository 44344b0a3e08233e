"""Where Postgres is: the URL as psycopg's parameters."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, unquote

import psycopg
from psycopg.conninfo import make_conninfo

from taskbridge.errors import ConfigurationError

__all__ = ["UNREADABLE", "parameters_of"]

UNREADABLE: Final = (
    "TASKBRIDGE_POSTGRES_URL cannot be read",
    "write postgresql://user:password@host:port/database, with special characters percent-encoded",
)

# As lenient as SQLAlchemy is, whose pool must read the same: libpq takes no slash in a password.
_URL: Final = re.compile(
    r"[\w+]+://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?(?:/(?P<dbname>[^?]*))?(?:\?(?P<query>.*))?"
)
_HOST_AND_PORT: Final = re.compile(r"([\w.-]*):(\d*)")


def parameters_of(url: str) -> dict[str, str]:
    """Return what psycopg connects with. A test compares it with what SQLAlchemy makes of the URL.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    found = _URL.match(url)
    if found is None or not (found["port"] or "0").isdecimal():
        raise ConfigurationError(*UNREADABLE)
    values = {name: unquote(found[name] or "") for name in ("user", "password", "dbname")}
    values |= {"host": found["ipv6"] or found["host"] or "", "port": found["port"] or ""}
    options = parse_qs(found["query"] or "")
    hosts = [_HOST_AND_PORT.fullmatch(one) for one in options.get("host", ())]
    if any(hosts):
        options["port"] = [one[2] if one else "" for one in hosts]
        options["host"] = [one[1] if one else name for one, name in zip(hosts, options["host"], strict=True)]
    values |= {name: ",".join(several) for name, several in options.items()}
    given = {name: value for name, value in values.items() if value}
    try:
        make_conninfo(**given)
        int(float(given.get("connect_timeout", 0)))
    except (psycopg.ProgrammingError, ValueError, OverflowError):
        query = found["query"] or ""
        # A password that is not percent-encoded may look like parameters.
        names = f" ({', '.join(options)})" if not re.search("@|password", query) else ""
        raise ConfigurationError(
            f"TASKBRIDGE_POSTGRES_URL has a parameter behind its `?` that libpq does not take{names}",
            "correct it, or leave it out: https://www.postgresql.org/docs/current/libpq-connect.html names them all",
        ) from None
    return given
