"""State that one call of a handler leaves behind, and what the next call finds of it: nothing.

`LEFT_BEHIND` are ways to leave state, in the session that a batch was lent and in the thread or task that called the
handler. `found_session` and `found_context` are called first in every call, whoever's it is. They know what may have
been left and look for that alone, so they need not know how a session of TaskBridge is set up.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from psycopg import Connection
from psycopg.adapt import PyFormat
from psycopg.rows import namedtuple_row
from psycopg.types.string import StrDumperUnknown

from taskbridge import Batch, Record

__all__ = ["LEFT_BEHIND", "PREPARES", "found_context", "found_session"]

PREPARES: Final = (
    "CREATE SCHEMA torture_elsewhere",
    "CREATE ROLE torture_role",
    "GRANT pg_read_all_data, pg_write_all_data TO torture_role",
)
"""Statements that the database needs once."""
_PRECISION: Final = 5
_THRESHOLD: Final = 1234
_SETTINGS: Final = {
    "search_path": "torture_elsewhere, public",
    "app.tenant": "left behind",
    "default_transaction_isolation": "serializable",
    "session_replication_role": "replica",
    "lock_timeout": "1234567ms",
    "datestyle": "SQL, DMY",
    "timezone": "Pacific/Apia",
    "synchronous_commit": "off",
    "role": "torture_role",
}
_SESSION: Final = """\
SELECT concat_ws(', ',
  (SELECT string_agg(s.name, ', ') FROM unnest(%(names)s::text[], %(texts)s::text[]) s (name, text)
    WHERE current_setting(s.name, true) = s.text),
  (SELECT string_agg('table ' || relname, ', ') FROM pg_class
    WHERE relnamespace = pg_my_temp_schema() AND relname = 'torture_left_behind'),
  (SELECT 'advisory lock' FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = 42),
  (SELECT string_agg('cursor ' || name, ', ') FROM pg_cursors WHERE name = 'torture_left_behind'),
  (SELECT string_agg('statement ' || name, ', ') FROM pg_prepared_statements WHERE name = 'torture_left_behind'),
  (SELECT string_agg('LISTEN ' || channel, ', ') FROM pg_listening_channels() channel
    WHERE channel = 'torture_left_behind'))
"""
_LEFT: ContextVar[bool] = ContextVar("torture_left_behind", default=False)


class _Dumper(StrDumperUnknown):
    """Dumps as the default one does; that it is here shows that adapters were left behind."""


def found_session(batch: Batch) -> list[str]:
    """Return what an earlier call left in the session of this batch."""
    driver = _driver(batch)
    attributes = {
        "row_factory": driver.row_factory is namedtuple_row,
        "prepare_threshold": driver.prepare_threshold == _THRESHOLD,
        "adapters": driver.adapters.get_dumper(str, PyFormat.TEXT) is _Dumper,
        "autocommit": driver.autocommit,
    }
    values = {"names": [*_SETTINGS], "texts": [*_SETTINGS.values()]}
    text = batch.connection.exec_driver_sql(_SESSION, values).scalar_one()
    return [*filter(None, [text]), *(name for name, is_left in attributes.items() if is_left)]


def found_context() -> list[str]:
    """Return what an earlier call left in the context of this one."""
    found = {"context variable": _LEFT.get(), "decimal context": decimal.getcontext().prec == _PRECISION}
    return [name for name, is_left in found.items() if is_left]


def _driver(batch: Batch) -> Connection[Any]:
    connection: Connection[Any] = batch.connection.connection.driver_connection  # type: ignore[assignment]
    return connection


def _executes(statement: str, **values: Any) -> Callable[[Batch, Record], None]:
    return lambda batch, _: batch.connection.exec_driver_sql(statement, values).close()


def _sets_driver(batch: Batch, _: Record) -> None:
    driver = _driver(batch)
    driver.row_factory, driver.prepare_threshold = namedtuple_row, _THRESHOLD
    driver.adapters.register_dumper(str, _Dumper)


def _sets_context(_: Batch, __: Record) -> None:
    _LEFT.set(True)
    decimal.getcontext().prec = _PRECISION


LEFT_BEHIND: Final[tuple[Callable[[Batch, Record], None], ...]] = (
    *(
        _executes("SELECT set_config(%(name)s, %(text)s, false)", name=name, text=text)
        for name, text in _SETTINGS.items()
    ),
    _executes("CREATE TEMP TABLE IF NOT EXISTS torture_left_behind (n int)"),
    _executes("SELECT pg_advisory_lock(42, pg_backend_pid())"),
    _executes("DECLARE torture_left_behind CURSOR WITH HOLD FOR SELECT 1"),
    _executes("PREPARE torture_left_behind AS SELECT 1"),
    _executes("LISTEN torture_left_behind"),
    _sets_driver,
    _sets_context,
)
