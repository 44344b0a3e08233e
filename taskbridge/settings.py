"""The settings of a process: environment variable, unit, default. The limits are in `taskbridge.common.limits`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from taskbridge.common.limits import SETTINGS
from taskbridge.common.names import (
    DEFAULT_PREFIX,
    DEFAULT_SCHEMA,
    check_key_prefix,
    check_redis_name,
    check_schema_name,
)
from taskbridge.common.sentinel import SentinelAddress, node_urls
from taskbridge.errors import ConfigurationError, InvalidName

__all__ = [
    "GIVEN",
    "NAMED_REDIS",
    "OVERRIDES",
    "Settings",
    "check_password",
    "check_token",
    "redis_variable",
    "unknown_variables",
]

OVERRIDES: Final[list[Callable[[], Mapping[str, str]]]] = []
"""Functions that return variables which override the environment, such as those of a framework's tests."""
GIVEN: Final[list[Callable[[], Mapping[str, str]]]] = []
"""Functions that return defaults for variables missing from the environment, such as from a framework's settings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a process. `Settings.read` reads them from the environment.

    Times are in seconds. An empty URL means that none is configured; the command line then uses the embedded servers.
    """

    postgres_url: str = ""
    """Where records, cursors and quarantine live: `postgresql://user:password@host:port/database`."""
    redis_url: str = ""
    """The gate: `redis://:password@host:port/0`, `rediss://` for TLS, `unix:///path/redis.sock?db=0` for a socket.

    A cluster: `redis://:password@host:port;redis://host:port`, with a `key_prefix` in braces.

    Behind Sentinel: `sentinel://:password@host:26379;sentinel://host:26379/0?master_name=NAME`, with TLS if there are
    parameters such as `ssl_ca_certs`.
    """
    redis: str = ""
    """The named Redis that a worker serves, as in `@pipeline(redis=...)`. Empty: that of `redis_url`."""
    redis_urls: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The URLs of the named Redis servers; in the environment TASKBRIDGE_REDIS_URL_ and the name in capitals."""
    broker_url: str = ""
    """Celery's broker. Empty: the gate's Redis; counting an event and publishing its run are then one atomic step."""
    pipelines: tuple[str, ...] = ()
    """Modules that declare pipelines; comma-separated in the environment."""
    key_prefix: str = DEFAULT_PREFIX
    """Prefix of all Redis keys of the gate, and of the queue names unless it is the default. With different prefixes,
    several deployments can share one Redis. For a Redis Cluster it must be in braces."""
    schema: str = DEFAULT_SCHEMA
    """The Postgres schema of all tables, functions and views of TaskBridge. It must contain nothing else."""
    runner_ttl: float = 5.0
    """After this many seconds without a heartbeat a run counts as dead and is replaced."""
    republish_after: float = 5.0
    """A run message that no worker has begun is published again after this many seconds; the time doubles each time."""
    run_budget: float = 1.0
    """A run ends after this many seconds, and its tenant waits for its next turn."""
    ticker_interval: float = 0.05
    """The maximum seconds between two checks of a worker for deadlines that have passed."""
    tail_interval: float = 0.2
    """How often, in seconds, the change poller looks for new records, with or without events."""
    base_interval: float = 3.0
    """How often, in seconds, the reconciler looks at everything that is pending. After Redis lost its data, work stops
    for at most this time plus 1 s. The interval grows if the passes would take more than 1 % of it."""
    tail_listens: bool = False
    """Whether a worker also polls as soon as a source announces a commit (`taskbridge.announce`)."""
    listen_url: str = ""
    """Where a worker listens for these announcements. Empty: at `postgres_url`, which must not be a pooler then."""
    notify_timeout: float = 0.25
    """How long, in seconds, an event waits for Redis before it times out; workers find its records anyway."""
    statement_timeout: float = 10.0
    """How long, in seconds, TaskBridge's own statements wait for Postgres before they time out."""
    transaction_timeout: float = 300.0
    """How long, in seconds, a handler's transaction may be idle, and how long each of its statements may take."""

    history_days: int = 7
    """How many days the run history is kept, with a row for each run; 0: no history is written."""

    metrics_port: int = 0
    """The port on which a worker serves metrics for Prometheus over HTTP; 0: none."""
    metrics_address: str = "127.0.0.1"
    """The address to listen on for metrics. Anybody who can reach it can read them. 0.0.0.0: all interfaces."""

    events_tokens: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens that `POST /events` accepts; comma-separated in the environment. Empty: the path does not exist."""
    dashboard_password: str = field(default="", repr=False)
    """The password of the dashboard (HTTP Basic). Empty: the dashboard can be used only from its own machine."""

    def __post_init__(self) -> None:
        for token in self.events_tokens:
            check_token(token)
        if self.dashboard_password:
            check_password(self.dashboard_password)
        try:
            check_key_prefix(self.key_prefix)
            check_schema_name(self.schema)
            for name in self.redis_urls:
                check_redis_name(name)
        except InvalidName as error:
            raise ConfigurationError(error.what, error.remedy) from None
        if len(node_urls(self.redis_url)) > 1 and not self.key_prefix.startswith("{"):
            raise ConfigurationError(
                "TASKBRIDGE_REDIS_URL names the nodes of a Redis Cluster, which needs a hash tag as the key prefix",
                "set TASKBRIDGE_KEY_PREFIX to a name in braces, such as {shop}",
            )
        self._check_named_redis()
        for name, limits in SETTINGS.items():
            value = getattr(self, name)
            if not limits.has(value):
                raise ConfigurationError(f"{_variable(name)} is {value:g}, it must lie {limits}")

    def _check_named_redis(self) -> None:
        for name, url in self.redis_urls.items():
            if len(node_urls(url)) > 1:
                raise ConfigurationError(
                    f"{redis_variable(name)} names the nodes of a Redis Cluster, which cannot be a broker",
                    "use a single server, or a primary behind Sentinel",
                )
        if self.redis and self.redis not in self.redis_urls:
            raise ConfigurationError(
                f"TASKBRIDGE_REDIS is {self.redis!r}, but {redis_variable(self.redis)} is not set",
                "set it to the URL of that server, or correct TASKBRIDGE_REDIS",
            )

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environment`.

        The default is the environment of the process, completed from `GIVEN` and overridden by `OVERRIDES`.

        Raises:
            ConfigurationError: a value is not a number or out of range, a URL is of the wrong kind, or a key prefix or
                a schema name is not allowed.
        """
        if environment is None:
            environment = _all_of(GIVEN) | os.environ | _all_of(OVERRIDES)
        values: dict[str, Any] = {}
        for setting in _fields():
            text = environment.get(_variable(setting.name), "").strip()
            if text:
                values[setting.name] = _parse(setting.name, text)
        values["redis_urls"] = {
            variable.removeprefix(NAMED_REDIS).lower(): _parse(variable.removeprefix(PREFIX).lower(), text.strip())
            for variable, text in environment.items()
            if variable.startswith(NAMED_REDIS) and text.strip()
        }
        return cls(**values)

    def as_environment(self) -> dict[str, str]:
        """Return the variables from which `read` makes the same settings; defaults are left out."""
        variables = {}
        for setting in _fields():
            value = getattr(self, setting.name)
            if value != setting.default:
                variables[_variable(setting.name)] = ",".join(value) if isinstance(value, tuple) else str(value)
        return variables | {redis_variable(name): url for name, url in self.redis_urls.items()}

    def url_of(self, redis: str) -> str:
        """Return the URL of a named Redis; of "", `redis_url`.

        Raises:
            ConfigurationError: it is not set.
        """
        if redis and redis not in self.redis_urls:
            raise ConfigurationError(
                f"{redis_variable(redis)} is not set",
                f"set it to the URL of the Redis of pipelines with redis={redis!r}",
            )
        return self.redis_urls[redis] if redis else self.redis_url

    @property
    def gate_url(self) -> str:
        """The URL of the Redis that this process serves."""
        return self.url_of(self.redis)

    @property
    def broker(self) -> str:
        """The URL of the broker; by default, and always with a named Redis, that of the gate."""
        return self._own_broker_url or _as_broker(self.gate_url)

    @property
    def broker_options(self) -> dict[str, Any]:
        """The options of kombu's transport that belong to `broker`."""
        address = None if self._own_broker_url else SentinelAddress.of(self.gate_url)
        return {} if address is None else address.broker_options

    @property
    def _own_broker_url(self) -> str:
        return "" if self.redis else self.broker_url


def _as_broker(url: str) -> str:
    """Return a redis-py URL in the form that kombu expects, which differs for a socket and for Sentinel."""
    if (address := SentinelAddress.of(url)) is not None:
        return address.broker_url
    if not url.startswith("unix://"):
        return node_urls(url)[0]
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    given = {name: quote(query[name], safe="") for name in ("username", "password") if name in query}
    user, password = given.get("username") or parts.username or "", given.get("password") or parts.password or ""
    whose = f"{user}:{password}@" if user or password else ""
    return f"redis+socket://{whose}{parts.path}?virtual_host={query.get('db', '0')}"


def _all_of(sources: Sequence[Callable[[], Mapping[str, str]]]) -> dict[str, str]:
    return {name: text for source in sources for name, text in source().items()}


_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,200}")


def check_token(token: str) -> str:
    """Return a bearer token unchanged; raise ConfigurationError unless it has 16 to 200 characters, all allowed.

    The message does not contain the token.
    """
    remedy = "use 16 to 200 of A-Z, a-z, 0-9 and ._~+/=-, as `openssl rand -hex 32` prints"
    return _checked(token, _TOKEN, "a token of TASKBRIDGE_EVENTS_TOKENS", remedy)


_PASSWORD: Final = re.compile(r"[^\x00-\x1f\x7f]{12,200}")


def check_password(password: str) -> str:
    """Return the dashboard's password unchanged; raise ConfigurationError unless it has 12 to 200 characters in a line.

    The message does not contain the password.
    """
    remedy = "use 12 to 200 characters on one line, as `openssl rand -hex 16` prints"
    return _checked(password, _PASSWORD, "the password of the dashboard (TASKBRIDGE_DASHBOARD_PASSWORD)", remedy)


def _checked(secret: str, allowed: re.Pattern[str], name: str, remedy: str) -> str:
    if not allowed.fullmatch(secret):
        raise ConfigurationError(f"{name} is not allowed", remedy)
    return secret


PREFIX: Final = "TASKBRIDGE_"
"""The prefix of all variables."""
NAMED_REDIS: Final = f"{PREFIX}REDIS_URL_"
"""The prefix of the variables with the URLs of named Redis servers."""

_SWITCHES = {"1": True, "true": True, "0": False, "false": False}

_SCHEMES: dict[str, tuple[str, ...]] = {
    "postgres_url": ("postgresql", "postgresql+psycopg", "postgres"),
    "listen_url": ("postgresql", "postgresql+psycopg", "postgres"),
    "redis_url": ("redis", "rediss", "unix", "sentinel"),
}


def _either(schemes: Sequence[str]) -> str:
    *others, last = (f"{scheme}://" for scheme in schemes)
    return f"{', '.join(others)} or {last}"


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def redis_variable(name: str) -> str:
    """Return the variable with the URL of a named Redis, or of "", the default one."""
    return f"{NAMED_REDIS}{name.upper()}" if name else _variable("redis_url")


def _fields() -> list[Field[Any]]:
    """Return the settings that have one variable each."""
    return [setting for setting in fields(Settings) if setting.name != "redis_urls"]


OTHERS: Final = frozenset({"TASKBRIDGE_DATA_DIR", "TASKBRIDGE_TRACEBACK"})
"""Variables of the command line."""


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables TASKBRIDGE_... that nothing reads, each with a suggestion.

    Variables that begin with TASKBRIDGE_TEST_ are for tests and are left out.
    """
    known = sorted({_variable(setting.name) for setting in _fields()} | OTHERS)
    unknown = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and not name.startswith((NAMED_REDIS, f"{PREFIX}TEST_")):
            from difflib import get_close_matches  # noqa: PLC0415 - slow, and hardly ever needed

            # Without the common prefix, which would make any two of them similar.
            endings = [variable.removeprefix(PREFIX) for variable in known]
            close = get_close_matches(name.removeprefix(PREFIX), endings, 1)
            unknown.append((name, f"did you mean {PREFIX}{close[0]}?" if close else f"there are {', '.join(known)}"))
    return unknown


_WHOLE: Final = {
    "metrics_port": "give a port number, or 0 for none",
    "history_days": "give a number of days, or 0 for none",
}


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(f"{_variable(name)} is {text!r}", _WHOLE[name])
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ConfigurationError(f"{_variable(name)} is {text!r}", "give 1 or 0")
    return _SWITCHES[text.lower()]


def _check_redis_url(name: str, text: str) -> None:
    """Check the URL of the gate, or of a broker that is one Redis; Celery takes other brokers, and a list of them."""
    written = "redis://:password@host:port/0"
    try:
        if text.startswith("sentinel") and name != "broker_url":
            written = "sentinel://:password@host:26379;sentinel://host:26379/0?master_name=NAME"
            _ = SentinelAddress.of(text)
        elif name != "broker_url" or (text.startswith(("redis://", "rediss://", "unix://")) and ";" not in text):
            _ = [urlsplit(url).port for url in node_urls(text)]
    except ValueError:
        raise ConfigurationError(
            f"{_variable(name)} cannot be read", f"write {written}, with special characters percent-encoded"
        ) from None


def _parse(name: str, text: str) -> object:
    if name in _WHOLE:
        return _whole(name, text)
    if name in SETTINGS:
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(f"{_variable(name)} is {text!r}", "give a number of seconds") from None
    if name == "redis":
        return text.lower()
    if name == "tail_listens":
        return _switch(name, text)
    if name in ("pipelines", "events_tokens"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    kind = "redis_url" if name.startswith("redis_url") else name
    if kind in _SCHEMES:
        scheme = text.partition("://")[0]
        if scheme not in _SCHEMES[kind] or "://" not in text:
            # The value may hold a password, so the message does not repeat it.
            raise ConfigurationError(f"{_variable(name)} must begin with {_either(_SCHEMES[kind])}")
    if kind in ("redis_url", "broker_url"):
        _check_redis_url(name, text)
    return text
