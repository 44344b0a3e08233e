"""During a handler's call the ORM uses the batch's connection: what it writes commits with the cursor, or not at all.

For the length of the call, the thread's database wrapper for the alias is replaced by one that opens the batch's
transaction when it is first used, and that behaves as if it were inside an outermost `atomic` block. Nested blocks are
therefore savepoints, Django itself refuses `commit`, `rollback` and durable blocks, and `on_commit` hooks run after the
batch has committed. The project's own connection is left alone and takes its place again when the call ends.

Django sets its adapters, its cursor class and its prepared statements on a view of the session, and so do backends that
prepare their connections in `get_new_connection`, such as GeoDjango's for PostGIS. What Django sets in the session
itself (time zone, role, and the search path unless the handler has set one) holds from the first use of the ORM until
the transaction ends.
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
from taskbridge.store.db import Bounded, driver_of
from taskbridge.store.queries import query
from taskbridge.worker.middleware import Hook

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["CAUGHT", "OTHER_ISOLATION", "REMEDY", "borrowing"]

IS_OVER: Final = (
    "the batch is over: its handler kept Django's connection, which was the batch's: ask "
    "`django.db.connections` for it anew"
)
CAUGHT: Final = (
    "an error of the database, or of an inner `atomic` block without a savepoint, was caught in the handler, and after "
    "it nothing can be committed: put what may fail into a `transaction.atomic()` block of its own"
)
OTHER_ISOLATION: Final = "has another isolation_level than the transaction of a batch, which is READ COMMITTED"
REMEDY: Final = (
    "name the alias of TaskBridge's database in TASKBRIDGE_DATABASE, or None, and handlers write into Django's "
    "databases at least once"
)


class Borrowed:
    """What Django's wrapper does differently while its connection is a batch's; `_wrapper_class` mixes it in."""

    original: Any
    """The project's own wrapper."""

    def connect(self: Any) -> None:
        """Take the batch's connection, which begins its transaction."""
        if self.batch is None:
            raise HandlerMistake(IS_OVER)
        if self.vendor != "postgresql":
            raise ConfigurationError(
                f"Django's database {self.alias!r} is {self.display_name}, so what a handler writes into it cannot "
                f"commit with the cursor: {REMEDY}"
            )
        if has_other_isolation(self):
            raise ConfigurationError(f"Django's database {self.alias!r} {OTHER_ISOLATION}: leave that out, or {REMEDY}")
        session = driver_of(self.batch.connection)
        assert isinstance(session, Bounded)  # noqa: S101 - for the type
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
        made = self.get_new_connection(parameters) if isinstance(self, Lent) else self.view
        if made is not self.view:
            made.close()
            raise ConfigurationError(
                f"the backend {self.settings_dict['ENGINE']!r} of Django's database {self.alias!r} connects without "
                f"Django's own `get_new_connection`, so what a handler writes into it cannot commit with the cursor: "
                f"call `super().get_new_connection` in the backend, or {REMEDY}"
            )
        self.connection = made
        connection_created.send(sender=type(self), connection=self)

    def close(self) -> None:
        """Do nothing: the runner closes it. Programs close connections routinely, to get a fresh one."""

    def on_commit(self, func: Hook, robust: bool = False) -> None:
        """Keep a hook. It belongs to a transaction, so from now on the batch commits as a whole or not at all."""
        super().ensure_connection()  # type: ignore[misc]
        super().on_commit(func, robust)  # type: ignore[misc]

    def end_call(self: Any, *, failed: bool) -> None:
        """Make the connection unusable.

        Raises:
            HandlerMistake: an error was caught, after which nothing can be committed.
        """
        self.connection, self.batch = None, None
        if not failed and self.needs_rollback:
            raise HandlerMistake(CAUGHT) from self.rollback_exc


class Lent(DatabaseWrapper):
    """Stands between a backend and Django's own wrapper, so that the backend prepares the batch's connection."""

    view: View

    def get_new_connection(self, _: Any) -> Any:
        """Return the batch's connection instead of a new one."""
        return self.view


@cache
def _wrapper_class(of: type) -> type[Any]:
    """Return a subclass of the project's wrapper that uses a batch's connection."""
    if not issubclass(of, DatabaseWrapper):
        bases: tuple[type, ...] = (Borrowed, of)
    else:
        bases = (Borrowed, Lent) if of is DatabaseWrapper else (Borrowed, of, Lent)
    return type(f"Borrowed{of.__name__}", bases, {"__module__": of.__module__})


_looked: Final[dict[tuple[str, ...], tuple[str, str]]] = {}


def _search_paths(wrapper: Any, engine: Engine) -> tuple[str, str]:
    """Return the search path of Django's own sessions, and that of a batch's when it begins.

    Both are looked up once per process, in sessions of their own, so that nothing a handler has set affects others.

    Raises:
        ConfigurationError: Django's database is not that of the batch.
    """
    settings = wrapper.settings_dict
    which = (*(str(settings[part]) for part in ("HOST", "PORT", "NAME", "USER", "OPTIONS")), str(engine.url))
    if which not in _looked:
        own = wrapper.original.copy()
        try:
            with own.cursor() as cursor:
                cursor.execute(query("where_connected"))
                *database, path = cursor.fetchone()
        finally:
            own.close()
        # A pool of its own: that of the batch would keep one more session from now on.
        pool = engine.pool.recreate()
        try:
            with closing(pool.connect()) as fresh, closing(fresh.cursor()) as cursor:
                cursor.execute(query("where_connected"))
                *batch_s, batch_path = cursor.fetchone() or ("", "", "")
        finally:
            pool.dispose()
        if database != batch_s:
            raise ConfigurationError(
                f"Django's database {wrapper.alias!r} ({database[1]}) is not that of TASKBRIDGE_POSTGRES_URL "
                f"({batch_s[1]}), so what a handler writes into it cannot commit with the cursor: leave that setting "
                f"out, or {REMEDY}"
            )
        _looked[which] = path, batch_path
    return _looked[which]


@contextmanager
def borrowing(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Let the ORM use the batch's connection in this thread until the block ends."""
    alias = alias_of_handlers()
    if alias is None:
        yield
        return
    before: Any = connections[alias]
    # A run inside of a handler's call, as where Celery runs tasks inline, has a transaction of its own.
    original: Any = before.original if isinstance(before, Borrowed) else before
    kind: Any = type(original)
    wrapper = _wrapper_class(kind)(original.settings_dict, alias)
    wrapper.batch, wrapper.original = batch, original
    # As inside of `atomic`; durable blocks look at the stack.
    wrapper.in_atomic_block, wrapper.atomic_blocks = True, [Atomic(alias, savepoint=False, durable=False)]
    # Whoever looks at queries sees these too. A wrapper that the handler adds ends with the call.
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
