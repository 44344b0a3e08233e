"""Connections to the gate's Redis and to an app's broker, with clear errors for an unusable configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import redis

from taskbridge.common.sentinel import SentinelAddress
from taskbridge.common.server_errors import note_address
from taskbridge.errors import ConfigurationError
from taskbridge.gate import Keys, client
from taskbridge.settings import Settings, redis_variable

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["CHECKED_FIRST", "broker_connection", "redis_of"]

CHECKED_FIRST: Final[list[Callable[[Settings], None]]] = []
"""Checks before this process connects to Postgres or to the gate's Redis; each raises an error if it fails."""


def redis_of(settings: Settings, seconds: float | None = None, *, interactive: bool = False) -> redis.Redis:
    """Return a client of the gate's Redis; `seconds` and `interactive` are as in `taskbridge.gate.client`.

    Raises:
        ConfigurationError: there is no URL, it is invalid, or this process must not use it.
    """
    url, variable = settings.gate_url, redis_variable(settings.redis)
    if not url:
        raise ConfigurationError(f"{variable} is not set: set it, or start `taskbridge up`")
    for check in CHECKED_FIRST:
        check(settings)
    try:
        keys = Keys(settings.key_prefix)
        slot_key = keys.owner if keys.is_hash_tag else None
        redis_client = client(url, seconds, interactive=interactive, slot_key=slot_key, variable=variable)
        pool = redis_client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, AttributeError, ValueError, redis.RedisError) as error:
        # redis-py rejects some parameters only when it makes a connection. Its text may contain a part of the password.
        named = re.search(r"(?:unexpected keyword argument|^Invalid value for) '([^']+)'", str(error))
        if named is None and isinstance(error, ValueError):
            raise ConfigurationError(
                f"{variable} cannot be read: write redis://:password@host:port/0, with special characters "
                "percent-encoded"
            ) from None
        raise ConfigurationError(
            f"{variable} has a query parameter, or a value of one, that redis-py does not accept"
            + (f" ({named[1]})" if named else ""),
            "correct it, or leave it out",
        ) from None
    options = redis_client.connection_pool.connection_kwargs
    addresses = [(options.get("path") or options.get("host") or "localhost", options.get("port") or 6379)]
    if "nodes" in options:
        addresses = options["nodes"].addresses
    elif (address := SentinelAddress.of(url)) is not None:
        connection: Any = redis.Connection
        if address.sentinel_password and "secret" in repr(connection(password="secret")):  # noqa: S106 - not one
            raise ConfigurationError(
                f"redis-py {redis.__version__} writes the password of a Sentinel into its errors",
                "upgrade the package redis, or leave sentinel_password out",
            )
        addresses = [*address.sentinels]
    hosts, ports = zip(*addresses, strict=True)
    note_address("Redis", *(",".join(map(str, part)) for part in (hosts, ports)))
    return redis_client


def broker_connection(app: Celery, *, write: bool = False, **options: Any) -> Any:
    """Return a connection to the broker of an app, which is opened on first use.

    Args:
        app: the app.
        write: use the broker for sending messages, if the app has a separate one.
        options: as `taskbridge.gate.message.connection_of` takes them.

    Raises:
        ConfigurationError: kombu has no such broker, needs a library for it, or rejects a parameter of its URL.
    """
    from taskbridge.gate.message import connection_of  # noqa: PLC0415 - not needed to read

    brokers: Any = options.get("url") or (app.conf.broker_write_url if write else app.conf.broker_read_url)
    urls = brokers.split(";") if isinstance(brokers, str) else list(brokers or ())
    scheme = str(urls[0]).partition("://")[0] if urls else "amqp"
    try:
        connection = connection_of(app, write=write, **options)
        transport = connection.transport
    except KeyError as error:
        if "No such transport" not in str(error):
            raise
        raise ConfigurationError(
            f"kombu knows no broker whose URL begins with {scheme}://",
            "correct TASKBRIDGE_BROKER_URL, as in redis://:password@host:port/0",
        ) from None
    except TypeError as error:
        unknown = re.search(r"_init_params\(\) got an unexpected keyword argument '([^']+)'$", str(error))
        if unknown is None:
            raise
        raise ConfigurationError(
            f"the broker's URL has a query parameter that kombu does not accept ({unknown[1]})",
            "set TASKBRIDGE_BROKER_URL to the URL without it",
        ) from None
    except ImportError as error:
        raise ConfigurationError(
            f"kombu needs the library {error.name} for a broker at {scheme}://",
            "install it, or correct TASKBRIDGE_BROKER_URL",
        ) from None
    addresses = [_address(url, transport.default_port) for url in urls]
    if addresses and all(addresses):
        note_address("broker", *(",".join(part) for part in zip(*filter(None, addresses), strict=True)))
    return connection


def _address(url: str, default_port: int | None) -> tuple[str, str] | None:
    """Return host and port; None if the URL has none, such as that of a service."""
    try:
        parts = urlsplit(url)
        port = parts.port or default_port
    except ValueError:
        return None
    if "+socket" in parts.scheme:
        return parts.path, "0"
    return None if port is None else (parts.hostname or "localhost", str(port))
