"""Django system checks. Database checks run with `check --database ALIAS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.db import connections

from taskbridge import store
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import spoken
from taskbridge.declaring.pipeline import Pipelines
from taskbridge.django.configuration import (
    ALIAS,
    alias_of_handlers,
    alias_of_postgres,
    check_alias,
    check_one_database,
    is_of_a_test,
    url_of,
)
from taskbridge.django.migrations import unadopted
from taskbridge.django.sessions import disconnect
from taskbridge.errors import TaskBridgeError
from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings, unknown_variables

__all__ = ["check_database", "check_settings"]


def _message(error: TaskBridgeError, number: str) -> CheckMessage:
    """Return an error as a check message, with its remedy as the hint."""
    kind = Error if number.startswith("E") else Warning
    return kind(error.what, hint=spoken(error.remedy), id=f"taskbridge.{number}")


@register
def check_settings(**_: Any) -> list[CheckMessage]:
    """Check the settings."""
    found: list[CheckMessage] = []
    given = {name: "" for name in dir(settings) if name.startswith("TASKBRIDGE_") and name != ALIAS}
    for name, text in unknown_variables(given):
        found.append(Warning(f"the setting {name} is unknown and ignored", hint=text, id="taskbridge.W001"))
    alias = alias_of_handlers()
    try:
        check_alias()
    except TaskBridgeError as error:
        return [_message(error, "E001")]
    try:
        pipelines = _pipelines()
    except TaskBridgeError as error:
        return [*found, _message(error, "E002")]
    for name in pipelines.names():
        if alias is not None and inspect.iscoroutinefunction(pipelines[name].handler):
            what = f"the handler of {name} is a coroutine function, so its ORM writes do not commit with the cursor"
            hint = "use a plain function, or make the handler safe to repeat"
            found.append(Warning(what, hint=hint, id="taskbridge.W002"))
    return found


def _pipelines() -> Pipelines:
    """Return the project's pipelines.

    Raises:
        TaskBridgeError: a setting is missing or invalid, or a module cannot be imported.
    """
    runtime = Runtime(Settings.read())
    if not runtime.settings.postgres_url:
        raise TaskBridgeError(f"TASKBRIDGE_POSTGRES_URL is not set, and {ALIAS} is None", "set one of them")
    if not runtime.settings.redis_url:
        raise TaskBridgeError(
            "TASKBRIDGE_REDIS_URL is not set, and CELERY_BROKER_URL does not begin with redis:// or rediss://",
            "set TASKBRIDGE_REDIS_URL",
        )
    return runtime.pipelines


@register(Tags.database)
def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the database, if TaskBridge uses it."""
    alias = alias_of_postgres()
    if alias is None or alias not in (databases or ()):
        return []
    try:
        configured = Settings.read()
    except TaskBridgeError:
        # `check_settings` reports it.
        return []
    try:
        engine = store.connect(configured.postgres_url or url_of(alias), configured.schema)
    except TaskBridgeError as error:
        return [_message(error, "E002")]
    checks: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: check_one_database(configured), "E005"),
        (lambda: store.check_version(engine), "E003"),
        # A warning, because an error would prevent `manage.py migrate`, which fixes it, from running.
        (lambda: store.check_schema(engine), "W004"),
        (lambda: store.check_cluster(engine), "E004"),
    )
    try:
        with translated_errors():
            for check, number in checks:
                try:
                    check()
                except TaskBridgeError as error:
                    return [_message(error, number)]
            return list(_of_tables(engine, alias))
    except TaskBridgeError as error:
        return [_message(error, "E003")]
    finally:
        engine.dispose()


def _of_tables(engine: Any, alias: str) -> Iterator[CheckMessage]:
    found = store.check_adoptions(engine)
    for source, wrong in found.items():
        for fault in wrong:
            # In a test, rows from migrations before the adoption need no backfill.
            if not (fault.is_recorded and is_of_a_test(alias)):
                what = f"the adopted table of {source}: {fault.what}"
                yield Warning(what, hint=spoken(fault.remedy), id="taskbridge.W003")
    wrapper = connections[alias]
    was_open = wrapper.connection is not None
    missing = list(unadopted(wrapper, found))
    if not was_open:
        disconnect(wrapper)
    for migration, source, command in missing:
        what = f"the applied migration {migration} adopts a table as {source}, but no table is adopted"
        yield Warning(f"{what}, so changes are not recorded", hint=spoken(f"run: {command}"), id="taskbridge.W005")
