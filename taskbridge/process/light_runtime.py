"""What a process needs that neither notifies nor runs, as `taskbridge status`: neither Celery nor SQLAlchemy."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

import redis

from taskbridge.common.server_errors import note_place
from taskbridge.declaring.pipeline import DECLARED, Pipeline, Pipelines
from taskbridge.errors import ConfigurationError, ForeignGate
from taskbridge.gate import Keys, client
from taskbridge.gate.inspector import Inspector
from taskbridge.handlers.journal import JOURNAL
from taskbridge.settings import Settings
from taskbridge.store import Pauses, Tenants, check_cluster, check_schema, check_version, connect, deployment, register_pipeline
from taskbridge.store.db import parameters_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from taskbridge.store import Quarantine
    from taskbridge.store.db import Database

__all__ = ["ALSO_CHECKED", "CHECKED_FIRST", "LightRuntime", "redis_of"]

ALSO_CHECKED: Final[list[Callable[[Settings], None]]] = []
"""What else has to hold before a process works, as in a framework; each raises what is wrong."""

CHECKED_FIRST: Final[list[Callable[[Settings], None]]] = []
"""What has to hold before this process connects to Postgres or to the gate's Redis; each raises what is wrong."""


def redis_of(settings: Settings, seconds: float | None = None, *, interactive: bool = False) -> redis.Redis:
    """Return a client of the gate's Redis; `seconds` and `interactive` are as in `taskbridge.gate.client`.

    Raises:
        ConfigurationError: there is no URL, it cannot be read, or this process is not to use it.
    """
    if not settings.redis_url:
        raise ConfigurationError("TASKBRIDGE_REDIS_URL is not set: set it, or start `taskbridge up`")
    for one in CHECKED_FIRST:
        one(settings)
    try:
        made = client(settings.redis_url, seconds, interactive=interactive)
        pool = made.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, AttributeError, redis.RedisError) as error:
        # redis-py meets such a parameter only where it makes a connection.
        raise _not_taken(re.search("unexpected keyword argument '([^']+)'$", str(error))) from None
    except ValueError as error:
        if named := re.search("^Invalid value for '([^']+)'", str(error)):
            raise _not_taken(named) from None
        # The text may hold a part of the password.
        raise ConfigurationError(
            "TASKBRIDGE_REDIS_URL cannot be read: write redis://:password@host:port/0, with special characters "
            "percent-encoded"
        ) from None
    where = made.connection_pool.connection_kwargs
    note_place("Redis", where.get("path") or where.get("host") or "localhost", where.get("port") or 6379)
    return made


def _not_taken(named: re.Match[str] | None) -> ConfigurationError:
    return ConfigurationError(
        "TASKBRIDGE_REDIS_URL has a parameter behind its `?`, or a value of one, that redis-py does not take"
        + (f" ({named[1]})" if named else ""),
        "correct it, or leave it out",
    )


class LightRuntime:
    """The connections and pipelines of a process that neither notifies nor runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def pipelines(self) -> Pipelines:
        """What the modules of TASKBRIDGE_PIPELINES declare; where none is named, the journal serves `invoices`.

        Beside other pipelines the journal would take invoices that are meant for a handler of another process.

        Raises:
            ConfigurationError: a module does not import, or none of them declares a pipeline.
        """
        modules = self.settings.pipelines
        DECLARED.load(modules)
        if not modules:
            return DECLARED.beside(JOURNAL)
        if not DECLARED.names():
            raise ConfigurationError(
                f"TASKBRIDGE_PIPELINES names {', '.join(modules)}, where no pipeline is declared: "
                "decorate a handler with `@taskbridge.pipeline`, or leave the variable out for the built-in journal"
            )
        return DECLARED

    @cached_property
    def redis(self) -> redis.Redis:
        """The gate's client."""
        return redis_of(self.settings, interactive=True)

    @property
    def keys(self) -> Keys:
        """The deployment's keys and queues."""
        return Keys(self.settings.key_prefix)

    @cached_property
    def gate(self) -> Inspector:
        """The gate."""
        return Inspector(self.redis, self.keys)

    @property
    def database(self) -> Database:
        """Postgres."""
        return self.engine

    @cached_property
    def engine(self) -> Engine:
        """The pool of connections to Postgres."""
        settings = self.settings
        if not settings.postgres_url:
            raise ConfigurationError("TASKBRIDGE_POSTGRES_URL is not set: set it, or start `taskbridge up`")
        for one in CHECKED_FIRST:
            one(settings)
        where = parameters_of(settings.postgres_url)
        note_place("Postgres", where.get("host") or "localhost", where.get("port") or "5432")
        return connect(settings.postgres_url, settings.schema, statement_timeout=settings.statement_timeout)

    def source_of(self, pipeline: str) -> str:
        """Return the source that a pipeline reads; of one that nobody declares, its name."""
        return self.pipelines[pipeline].source if pipeline in self.pipelines.names() else pipeline

    def tenants_of(self, pipeline: str) -> Tenants:
        """Return the tenants of the source that a pipeline reads.

        Raises:
            UnknownPipeline: no loaded module declares it.
        """
        return Tenants(self.database, self.pipelines[pipeline].source)

    def quarantine_of(self, pipeline: str) -> Quarantine:
        """Return the quarantine of the source that a pipeline reads; raises as `tenants_of`."""
        from taskbridge.store import Quarantine  # noqa: PLC0415 - only where somebody asks for it

        return Quarantine(self.database, self.pipelines[pipeline].source)

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses of tenants and pipelines."""
        return Pauses(self.database)

    def register(self, pipeline: Pipeline) -> None:
        """Let the database know the pipeline, once in this process.

        Raises:
            InvalidPolicy: it has read another source until now.
        """
        if self._registered.get(pipeline.name) != pipeline.source:
            register_pipeline(self.database, pipeline.name, pipeline.source, pipeline.start)
            self._registered[pipeline.name] = pipeline.source

    @cached_property
    def _known(self) -> dict[str, str]:
        return {}

    @cached_property
    def deployment(self) -> tuple[str, str]:
        """What tells this deployment's database from all others, and what people call that."""
        database, name = deployment(self.database)
        where = parameters_of(self.settings.postgres_url)
        return database, f"{name}, at {where.get('host') or 'localhost'}:{where.get('port') or 5432}"

    def check_owner(self) -> None:
        """Raise ForeignGate if workers of another database use the gate."""
        owner = self.gate.owner()
        if owner is not None and owner[0] != self.deployment[0]:
            raise ForeignGate(owner[1], self.keys.owner)

    def close_sessions(self) -> None:
        """Close the sessions of Postgres that were opened; others are opened where they are needed."""
        if "engine" in self.__dict__:
            self.engine.dispose()

    def release_gate(self) -> None:
        """Let any deployment take the gate, if Redis can be used; one whose workers run takes it back."""
        with suppress(ConfigurationError, redis.RedisError):
            self.redis.delete(self.keys.owner)

    def check(self, *, redis: bool = True) -> None:
        """Use every server and every pipeline once, so that a process that could not work says so at once.

        Without `redis` it is left alone: what is asked for can be told without it.

        Raises:
            TaskBridgeError: a pipeline module does not import, a server is too old, the schema is not this version's,
                the database was restored into another cluster, or the gate belongs to another one.
            Exception: of the driver, where a server cannot be used.
        """
        self.pipelines.names()
        if redis:
            self.gate.check_version()
        for one in ALSO_CHECKED:
            one(self.settings)
        check_version(self.database)
        check_schema(self.database)
        check_cluster(self.database)
        if redis:
            self.check_owner()
        for name in self.pipelines.names():
            self.register(self.pipelines[name])
