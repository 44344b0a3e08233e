"""The runtime of a process that neither notifies nor runs, such as `taskbridge status`, without loading Celery."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

import redis

from taskbridge.common.server_errors import note_address
from taskbridge.declaring.pipeline import DECLARED, Pipeline, Pipelines
from taskbridge.errors import ConfigurationError, ForeignGate
from taskbridge.gate import Keys, client
from taskbridge.gate.inspector import Inspector
from taskbridge.handlers.journal import JOURNAL
from taskbridge.settings import Settings
from taskbridge.store import (
    Pauses,
    Tenants,
    check_cluster,
    check_schema,
    check_version,
    connect,
    deployment,
    register_pipeline,
)
from taskbridge.store.db import parameters_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from taskbridge.store import Quarantine
    from taskbridge.store.db import Database

__all__ = ["ALSO_CHECKED", "CHECKED_FIRST", "LightRuntime", "redis_of"]

ALSO_CHECKED: Final[list[Callable[[Settings], None]]] = []
"""Further checks before a process starts work, such as those of a framework; each raises an error if it fails."""

CHECKED_FIRST: Final[list[Callable[[Settings], None]]] = []
"""Checks before this process connects to Postgres or to the gate's Redis; each raises an error if it fails."""


def redis_of(settings: Settings, seconds: float | None = None, *, interactive: bool = False) -> redis.Redis:
    """Return a client of the gate's Redis; `seconds` and `interactive` are as in `taskbridge.gate.client`.

    Raises:
        ConfigurationError: there is no URL, it is invalid, or this process must not use it.
    """
    if not settings.redis_url:
        raise ConfigurationError("TASKBRIDGE_REDIS_URL is not set: set it, or start `taskbridge up`")
    for check in CHECKED_FIRST:
        check(settings)
    try:
        redis_client = client(settings.redis_url, seconds, interactive=interactive)
        pool = redis_client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, AttributeError, redis.RedisError) as error:
        # redis-py rejects such a parameter only when it makes a connection.
        raise _not_taken(re.search("unexpected keyword argument '([^']+)'$", str(error))) from None
    except ValueError as error:
        if named := re.search("^Invalid value for '([^']+)'", str(error)):
            raise _not_taken(named) from None
        # The text may contain a part of the password.
        raise ConfigurationError(
            "TASKBRIDGE_REDIS_URL cannot be read: write redis://:password@host:port/0, with special characters "
            "percent-encoded"
        ) from None
    options = redis_client.connection_pool.connection_kwargs
    note_address("Redis", options.get("path") or options.get("host") or "localhost", options.get("port") or 6379)
    return redis_client


def _not_taken(named: re.Match[str] | None) -> ConfigurationError:
    return ConfigurationError(
        "TASKBRIDGE_REDIS_URL has a query parameter, or a value of one, that redis-py does not accept"
        + (f" ({named[1]})" if named else ""),
        "correct it, or leave it out",
    )


class LightRuntime:
    """The connections and pipelines of a process that neither notifies nor runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def pipelines(self) -> Pipelines:
        """The pipelines declared by the modules of TASKBRIDGE_PIPELINES; by default, the journal for `invoices`.

        If there are other pipelines, the journal is left out: it would take invoices meant for a handler of another
        process.

        Raises:
            ConfigurationError: a module cannot be imported, or none of them declares a pipeline.
        """
        modules = self.settings.pipelines
        DECLARED.load(modules)
        if not modules:
            return DECLARED.beside(JOURNAL)
        if not DECLARED.names():
            raise ConfigurationError(
                f"TASKBRIDGE_PIPELINES names {', '.join(modules)}, but no pipeline is declared there: "
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
        for check in CHECKED_FIRST:
            check(settings)
        parameters = parameters_of(settings.postgres_url)
        note_address("Postgres", parameters.get("host") or "localhost", parameters.get("port") or "5432")
        return connect(settings.postgres_url, settings.schema, statement_timeout=settings.statement_timeout)

    def source_of(self, pipeline: str) -> str:
        """Return the source that a pipeline reads; for an undeclared pipeline, its name."""
        return self.pipelines[pipeline].source if pipeline in self.pipelines.names() else pipeline

    def tenants_of(self, pipeline: str) -> Tenants:
        """Return the tenants of the source that a pipeline reads.

        Raises:
            UnknownPipeline: no loaded module declares it.
        """
        return Tenants(self.database, self.pipelines[pipeline].source)

    def quarantine_of(self, pipeline: str) -> Quarantine:
        """Return the quarantine of the source that a pipeline reads; raises as `tenants_of`."""
        from taskbridge.store import Quarantine  # noqa: PLC0415 - rarely needed

        return Quarantine(self.database, self.pipelines[pipeline].source)

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses of tenants and pipelines."""
        return Pauses(self.database)

    def register(self, pipeline: Pipeline) -> None:
        """Register the pipeline in the database, once per process.

        Raises:
            InvalidPolicy: it has read another source so far.
        """
        if self._registered.get(pipeline.name) != pipeline.source:
            register_pipeline(self.database, pipeline.name, pipeline.source, pipeline.start)
            self._registered[pipeline.name] = pipeline.source

    @cached_property
    def _registered(self) -> dict[str, str]:
        return {}

    @cached_property
    def deployment(self) -> tuple[str, str]:
        """A unique identifier of this deployment's database, and a readable name."""
        database, name = deployment(self.database)
        parameters = parameters_of(self.settings.postgres_url)
        return database, f"{name}, at {parameters.get('host') or 'localhost'}:{parameters.get('port') or 5432}"

    def check_owner(self) -> None:
        """Raise ForeignGate if workers of another database use the gate."""
        owner = self.gate.owner()
        if owner is not None and owner[0] != self.deployment[0]:
            raise ForeignGate(owner[1], self.keys.owner)

    def close_sessions(self) -> None:
        """Close the open Postgres sessions; new ones are opened when needed."""
        if "engine" in self.__dict__:
            self.engine.dispose()

    def release_gate(self) -> None:
        """Let any deployment take the gate, if Redis is available; a deployment with running workers takes it back."""
        with suppress(ConfigurationError, redis.RedisError):
            self.redis.delete(self.keys.owner)

    def check(self, *, redis: bool = True) -> None:
        """Use every server and every pipeline once, so that a process that could not work fails at its start.

        With `redis=False` Redis is not checked, for commands that do not need it.

        Raises:
            TaskBridgeError: a pipeline module cannot be imported, a server is too old, the schema is not that of this
                version, the database was restored into another cluster, or the gate belongs to another deployment.
            Exception: an error of the driver, if a server cannot be used.
        """
        self.pipelines.names()
        if redis:
            self.gate.check_version()
        for check in ALSO_CHECKED:
            check(self.settings)
        check_version(self.database)
        check_schema(self.database)
        check_cluster(self.database)
        if redis:
            self.check_owner()
        for name in self.pipelines.names():
            self.register(self.pipelines[name])
