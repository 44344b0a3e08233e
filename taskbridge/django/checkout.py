"""While a handler is called, the ORM uses the batch's connection, so its writes commit with the cursor or not at all.

During the call, the thread's database wrapper for the alias is replaced by one that opens the batch's transaction when
it is first used, and behaves as if inside an outermost `atomic` block. So nested blocks are savepoints, Django itself
refuses `commit`, `rollback` and durable blocks, and `on_commit` hooks run after the batch has committed. The project's
own connection is untouched, and is restored when the call ends.

Django sets its adapters, cursor class and prepared statements on a view of the session, as do backends that prepare
connections in `get_new_connection`, such as GeoDjango's for PostGIS. What Django sets in the session itself (time zone
and role) applies from the first use of the ORM until the transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import psycopg
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import Atomic

from taskbridge.declaring.batch import Batch
from taskbridge.django.configuration import alias_of_handlers
from taskbridge.errors import ConfigurationError, HandlerMistake
from taskbridge.store.checkout import View
from taskbridge.store.db import driver_of
from taskbridge.store.queries import query
from taskbridge.worker.middleware import Hook

__all__ = ["CAUGHT", "checkout"]

READ_COMMITTED: Final = psycopg.IsolationLevel.READ_COMMITTED
IS_OVER: Final = (
    "the batch is over, but its handler kept Django's connection, which belonged to the batch: get it again from "
    "`django.db.connections`"
)
CAUGHT: Final = (
    "the handler caught a database error, or an error of an inner `atomic` block without a savepoint, after which "
    "nothing can be committed: put what may fail into its own `transaction.atomic()` block"
)


class CheckedOut:
    """Mixin for a wrapper that uses a batch's connection; see `_wrapper_class`."""

    original: Any
    """The project's own wrapper."""

    def connect(self: Any) -> None:
        """Use the batch's connection, which begins its transaction."""
        if self.batch is None:
            raise HandlerMistake(IS_OVER)
        level = self.settings_dict["OPTIONS"].get("isolation_level", READ_COMMITTED)
        if level != READ_COMMITTED:
            raise ConfigurationError(
                f"Django's database {self.alias!r} does not have the isolation level of a batch's transaction, READ "
                "COMMITTED: remove isolation_level, or set TASKBRIDGE_DATABASE to None to let handlers write to "
                "Django's databases independently of the cursor"
            )
        session = driver_of(self.batch.connection)
        own = {"TimeZone": self.timezone_name}
        if role := self.settings_dict["OPTIONS"].get("assume_role"):
            own["role"] = role
        session.execute(query("set_parameters"), {"names": [*own], "values": [*own.values()], "locally": True})
        parameters = self.get_connection_params()
        self.view = View(session, parameters["context"].adapters)
        self.view.cursor_factory = parameters["cursor_factory"]
        self.get_new_connection(parameters)
        self.connection = self.view
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
    bases = (CheckedOut, BatchConnection) if of is DatabaseWrapper else (CheckedOut, of, BatchConnection)
    return type(f"CheckedOut{of.__name__}", bases, {"__module__": of.__module__})


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
