"""While a handler is called, the ORM uses the batch's connection, so its writes commit with the cursor or not at all.

During the call, the thread's database wrapper for the alias is replaced by one that opens the batch's transaction when
it is first used, and behaves as if inside an outermost `atomic` block. So nested blocks are savepoints, Django itself
refuses `commit`, `rollback` and durable blocks, and `on_commit` hooks run after the batch has committed. The project's
own connection is untouched, and is restored when the call ends.

Django sets its adapters, cursor class and prepared statements on a view of the session, as do backends that prepare
connections in `get_new_connection`, such as GeoDjango's for PostGIS. What Django sets in the session itself (time zone,
role, and the search path unless the handler has set one) applies from the first use of the ORM until the transaction
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import Atomic

from taskbridge.declaring.batch import Batch
from taskbridge.django.configuration import alias_of_handlers, has_other_isolation
from taskbridge.errors import ConfigurationError, HandlerMistake
from taskbridge.store.checkout import View
from taskbridge.store.db import driver_of
from taskbridge.store.queries import query
from taskbridge.worker.middleware import Hook

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["CAUGHT", "OTHER_ISOLATION", "REMEDY", "checkout"]

IS_OVER: Final = (
    "the batch is over, but its handler kept Django's connection, which belonged to the batch: get it again from "
    "`django.db.connections`"
)
CAUGHT: Final = (
    "the handler caught a database error, or an error of an inner `atomic` block without a savepoint, after which "
    "nothing can be committed: put what may fail into its own `transaction.atomic()` block"
)
OTHER_ISOLATION: Final = "does not have the isolation level of a batch's transaction, READ COMMITTED"
REMEDY: Final = (
    "set TASKBRIDGE_DATABASE to the alias of TaskBridge's database, or to None to let handlers write to Django's "
    "databases independently of the cursor"
)


class CheckedOut:
    """Mixin for a wrapper that uses a batch's connection; see `_wrapper_class`."""

    original: Any
    """The project's own wrapper."""

    def connect(self: Any) -> None:
        """Use the batch's connection, which begins its transaction."""
        if self.batch is None:
            raise HandlerMistake(IS_OVER)
        if self.vendor != "postgresql":
            raise ConfigurationError(
                f"Django's database {self.alias!r} is {self.display_name}, so a handler's writes to it cannot commit "
                f"with the cursor: {REMEDY}"
            )
        if has_other_isolation(self):
            raise ConfigurationError(
                f"Django's database {self.alias!r} {OTHER_ISOLATION}: remove isolation_level, or {REMEDY}"
            )
        session = driver_of(self.batch.connection)
        path, batch_path = _search_paths(self, self.batch.connection.engine)
        wanted: list[tuple[str, str, str | None]] = []
        if session.info.parameter_status("TimeZone") != self.timezone_name:
            wanted.append(("TimeZone", self.timezone_name, None))
        if path != batch_path:
            wanted.append(("search_path", path, batch_path))
        if role := self.settings_dict["OPTIONS"].get("assume_role"):
            wanted.append(("role", role, None))
        if wanted:
            names, values, only_from = map(list, zip(*wanted, strict=True))
            parameters = {"names": names, "values": values, "only_from": only_from, "locally": True}
            session.execute(query("set_parameters"), parameters)
        parameters = self.get_connection_params()
        self.view = View(session, parameters["context"].adapters)
        self.view.cursor_factory = parameters["cursor_factory"]
        made = self.get_new_connection(parameters) if isinstance(self, BatchConnection) else self.view
        if made is not self.view:
            made.close()
            raise ConfigurationError(
                f"the backend {self.settings_dict['ENGINE']!r} of Django's database {self.alias!r} connects without "
                f"calling `super().get_new_connection`, so a handler's writes to it cannot commit with the cursor: "
                f"call it in the backend, or {REMEDY}"
            )
        self.connection = made
        connection_created.send(sender=type(self), connection=self)

    def close(self) -> None:
        """Do nothing: the worker closes the connection. Programs routinely close connections to get a new one."""

    def on_commit(self, func: Hook, robust: bool = False) -> None:
        """Keep a hook. This opens the transaction, so that the batch commits as a whole or not at all."""
        super().ensure_connection()  # type: ignore[misc]
        super().on_commit(func, robust)  # type: ignore[misc]

    def end_call(self: Any, *, failed: bool) -> None:
        """Make the connection unusable.

        Raises:
            HandlerMistake: the handler caught an error after which nothing can be committed.
        """
        self.connection, self.batch = None, None
        if not failed and self.needs_rollback:
            raise HandlerMistake(CAUGHT) from self.rollback_exc


class BatchConnection(DatabaseWrapper):
    """Sits between a backend and Django's own wrapper, so that the backend prepares the batch's connection."""

    view: View

    def get_new_connection(self, _: Any) -> Any:
        """Return the batch's connection instead of a new one."""
        return self.view


@cache
def _wrapper_class(of: type) -> type[Any]:
    """Return a subclass of the project's wrapper that uses a batch's connection."""
    if not issubclass(of, DatabaseWrapper):
        bases: tuple[type, ...] = (CheckedOut, of)
    else:
        bases = (CheckedOut, BatchConnection) if of is DatabaseWrapper else (CheckedOut, of, BatchConnection)
    return type(f"CheckedOut{of.__name__}", bases, {"__module__": of.__module__})


_known_paths: Final[dict[tuple[str, ...], tuple[str, str]]] = {}


def _search_paths(wrapper: Any, engine: Engine) -> tuple[str, str]:
    """Return the search path of Django's own sessions, and the initial one of a batch's sessions.

    Both are looked up once per process, in separate sessions, so that they do not depend on what a handler has set.

    Raises:
        ConfigurationError: Django's database is not the batch's.
    """
    settings = wrapper.settings_dict
    which = (*(str(settings[part]) for part in ("HOST", "PORT", "NAME", "USER", "OPTIONS")), str(engine.url))
    if which not in _known_paths:
        own = wrapper.original.copy()
        try:
            with own.cursor() as cursor:
                cursor.execute(query("where_connected"))
                *database, path = cursor.fetchone()
        finally:
            own.close()
        # A separate pool: otherwise the batch's pool would keep another session open.
        pool = engine.pool.recreate()
        try:
            with closing(pool.connect()) as fresh, closing(fresh.cursor()) as cursor:
                cursor.execute(query("where_connected"))
                *batch_s, batch_path = cursor.fetchone() or ("", "", "")
        finally:
            pool.dispose()
        if database != batch_s:
            raise ConfigurationError(
                f"Django's database {wrapper.alias!r} ({database[1]}) is not the one in TASKBRIDGE_POSTGRES_URL "
                f"({batch_s[1]}), so a handler's writes to it cannot commit with the cursor: remove that setting, or "
                f"{REMEDY}"
            )
        _known_paths[which] = path, batch_path
    return _known_paths[which]


@contextmanager
def checkout(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Make the ORM use the batch's connection in this thread during the block."""
    alias = alias_of_handlers()
    if alias is None:
        yield
        return
    before: Any = connections[alias]
    # A run within a handler's call, as when Celery runs tasks eagerly, has its own transaction.
    original: Any = before.original if isinstance(before, CheckedOut) else before
    kind: Any = type(original)
    wrapper = _wrapper_class(kind)(original.settings_dict, alias)
    wrapper.batch, wrapper.original = batch, original
    # As inside `atomic`; durable blocks check the stack.
    wrapper.in_atomic_block, wrapper.atomic_blocks = True, [Atomic(alias, savepoint=False, durable=False)]
    # Tools that observe queries see these, too. Wrappers that the handler adds end with the call.
    wrapper.execute_wrappers, wrapper.queries_log = [*original.execute_wrappers], original.queries_log
    wrapper.force_debug_cursor = original.force_debug_cursor
    connections[alias] = wrapper
    failed = True
    try:
        yield
        failed = False
    finally:
        connections[alias] = before
        wrapper.end_call(failed=failed)
    for _, hook, _ in wrapper.run_on_commit:
        after_commit(hook)
