"""Django system checks. Those of the database run with `check --database ALIAS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.db import connections

from taskbridge import store
from taskbridge.common.server_errors import translated_errors
from taskbridge.django.borrowing import OTHER_ISOLATION, REMEDY
from taskbridge.django.configuration import (
    ALIAS,
    alias_of_handlers,
    check_one_database,
    has_other_isolation,
    is_of_a_test,
    url_of,
)
from taskbridge.django.disconnecting import disconnect
from taskbridge.django.migrations import unadopted
from taskbridge.django.typed import typed
from taskbridge.errors import TaskBridgeError
from taskbridge.process.light_runtime import LightRuntime
from taskbridge.settings import Settings, unknown_variables

__all__ = ["connect_checks"]


_CHECKS: Final[tuple[tuple[Callable[[Any], None], str], ...]] = (
    (store.check_version, "E003"),
    # An error would prevent `manage.py migrate`, which fixes it, from running.
    (store.check_schema, "W004"),
    (store.check_cluster, "E004"),
)


def _said(error: TaskBridgeError, number: str) -> CheckMessage:
    """Return an error as a Django check message, with its remedy as the hint."""
    kind = Error if number.startswith("E") else Warning
    return kind(error.what, hint=typed(error.remedy), id=f"taskbridge.{number}")


def connect_checks() -> None:
    """Register the checks."""
    register(check_settings)
    register(check_database, Tags.database)


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check the settings."""
    found: list[CheckMessage] = []
    given = {name: "" for name in dir(settings) if name.startswith("TASKBRIDGE_") and name != ALIAS}
    for name, text in unknown_variables(given):
        found.append(Warning(f"the setting {name} is not known and does nothing", hint=text, id="taskbridge.W001"))
    alias = alias_of_handlers()
    if alias is not None and alias not in connections:
        return [Error(f"{ALIAS} is {alias!r}, which is not in DATABASES", id="taskbridge.E001")]
    if alias is not None and (wrapper := connections[alias]).vendor != "postgresql":
        hint = f"name the alias of a PostgreSQL database in {ALIAS}, or None and set TASKBRIDGE_POSTGRES_URL"
        return [Error(f"the database {alias!r} is {wrapper.display_name}", hint=hint, id="taskbridge.E001")]
    if alias is not None and has_other_isolation(connections[alias]):
        what = f"the database {alias!r} {OTHER_ISOLATION}, so each run of a handler that uses this database fails"
        found.append(Warning(what, hint=f"leave isolation_level out, or {REMEDY}", id="taskbridge.W006"))
    try:
        runtime = LightRuntime(Settings.read())
        if not runtime.settings.postgres_url:
            raise TaskBridgeError(f"there is no TASKBRIDGE_POSTGRES_URL, and {ALIAS} is None", "set one of them")
        if not runtime.settings.redis_url:
            raise TaskBridgeError(
                "there is no TASKBRIDGE_REDIS_URL, and CELERY_BROKER_URL is no Redis", "set the first"
            )
        names = runtime.pipelines.names()
    except TaskBridgeError as error:
        return [*found, _said(error, "E002")]
    handlers = {name: runtime.pipelines[name].handler for name in names}
    found += [
        Warning(
            f"the handler of {name} is a coroutine function, so what it writes with the ORM commits on its own",
            hint="write a plain function, or take care that a record may be handled twice",
            id="taskbridge.W002",
        )
        for name, handler in handlers.items()
        if alias is not None and inspect.iscoroutinefunction(handler)
    ]
    return found


def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the database itself, if it is TaskBridge's."""
    alias = alias_of_handlers()
    if alias is None or alias not in (databases or ()) or connections[alias].vendor != "postgresql":
        return []
    try:
        configured = Settings.read()
    except TaskBridgeError:
        # `check_settings` reports it.
        return []
    try:
        engine = store.connect(configured.postgres_url or url_of(alias), configured.schema)
    except TaskBridgeError as error:
        return [_said(error, "E002")]
    try:
        with translated_errors():
            try:
                check_one_database(configured)
            except TaskBridgeError as error:
                return [_said(error, "E005")]
            for check, number in _CHECKS:
                try:
                    check(engine)
                except TaskBridgeError as error:
                    return [_said(error, number)]
            return list(_of_tables(engine, alias))
    except TaskBridgeError as error:
        return [_said(error, "E003")]
    finally:
        engine.dispose()


def _of_tables(engine: Any, alias: str) -> Iterator[CheckMessage]:
    found = store.check_adoptions(engine)
    for source, wrong in found.items():
        for fault in wrong:
            if fault.is_recorded and is_of_a_test(alias):
                # Rows that migrations made before the adoption need no backfill in a test.
                continue
            yield Warning(
                f"the adopted table of {source}: {fault.what}", hint=typed(fault.remedy), id="taskbridge.W003"
            )
    wrapper = connections[alias]
    was_open = wrapper.connection is not None
    missing = list(unadopted(wrapper, found))
    if not was_open:
        disconnect(wrapper)
    for migration, source, command in missing:
        what = f"{migration} is applied and adopts the source {source}, but no table is adopted as it"
        yield Warning(f"{what}, so changes make no records", hint=typed(f"run: {command}"), id="taskbridge.W005")
