"""For tests in Django's own classes.

In a `TestCase` nothing is ever committed, so no worker could see it: `deliver` calls the handler with what the test has
saved, in the test's own transaction. In a `TransactionTestCase`, `deployed` has the real gate, cursor and runner.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from asgiref.sync import async_to_sync
from celery import Celery
from django.db import connections, transaction
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from sqlalchemy import Connection

from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.django.configuration import alias_of_handlers, url_of
from taskbridge.django.lending import lent
from taskbridge.errors import ConfigurationError
from taskbridge.process.light_runtime import LightRuntime
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.running.tail import base_round, tail_round
from taskbridge.settings import Settings
from taskbridge.store.adopted import described, known
from taskbridge.store.documents import decoded
from taskbridge.store.orm import BatchSession
from taskbridge.store.queries import filled, query, quoted, schema_of
from taskbridge.store.schema import VERSION_TABLE
from taskbridge.testing.deploying import own_deployment
from taskbridge.testing.inline import drain_all, notified

__all__ = ["Deployed", "deliver", "deployed"]

_KEPT: Final = ("adopted", "taskbridge_cluster", VERSION_TABLE)
"""Our tables that `deployed` does not empty: which tables are adopted, in which cluster, and at which schema."""


def deliver(name: str) -> list[Batch]:
    """Call a pipeline's handler with the records of this test's transaction that it was not given yet.

    Batches are made as a worker makes them: of one tenant, oldest first. Returns them in their order; what the
    handler rejected is in `batch.rejected`. It is called at once: there are no runs, delays, rate limits or tries.

    Raises:
        Exception: what the handler raised; what it wrote is rolled back, and the next call gives it the same.
        ConfigurationError: there is no transaction, as in a TransactionTestCase.
        UnknownPipeline: nobody declares it.
    """
    runtime = LightRuntime(Settings.read())
    pipeline, alias = runtime.pipelines[name], alias_of_handlers()
    if alias is None or not connections[alias].in_atomic_block:
        raise ConfigurationError("`deliver` is for the transaction of a TestCase: elsewhere use `deployed`")
    readers = sum(runtime.pipelines[one].source == pipeline.source for one in runtime.pipelines.names())
    with transaction.atomic(alias), lent(alias, runtime.settings.schema) as connection:
        batches = []
        for tenant, records in _deliverable(connection, pipeline, alias):
            with (
                _session(connection) as session,
                _muted(connection, pipeline.source if readers == 1 else "", tenant),
            ):
                batch = Batch(
                    name, tenant, "test", records, connect=lambda: connection, open_session=session, owned=lambda: True
                )
                batches.append(batch)
                _call(pipeline, batch)
    return batches


@contextmanager
def _session(connection: Connection) -> Iterator[Callable[[], BatchSession]]:
    """Lend what opens a batch's session; what that holds is written at the end, as a worker does."""
    opened: list[BatchSession] = []

    def open_session() -> BatchSession:
        if not opened:
            opened.append(BatchSession(connection))
        return opened[0]

    try:
        yield open_session
        for session in opened:
            session.commit()
    finally:
        for session in opened:
            session.end()


def _deliverable(connection: Connection, pipeline: Pipeline, alias: str) -> list[tuple[str, tuple[Record, ...]]]:
    """Read what was written in this transaction since the last call, batch by batch, and note how far that is."""
    schema, document = schema_of(connection), None
    with transaction.atomic(alias):
        if found := known(connection, pipeline.source):
            document = described(connection, found[0].relation, found[0].definition).document
        # With it goes the search path that the look has set.
        transaction.set_rollback(True, alias)
    mark = f"taskbridge.delivered_{pipeline.name.replace('-', '_')}"
    rows = connection.exec_driver_sql(query("own_records", schema), {"source": pipeline.source, "mark": mark}).all()
    records: dict[str, list[Record]] = {}
    for tenant, key, revision in rows:
        values = {"source": pipeline.source, "tenant": tenant, "key": key, "revision": revision, "small": 2**31 - 1}
        text, deleted, _ = connection.exec_driver_sql(query("document", schema, document), values).one()
        content = {} if text is None else decoded(text)[0]
        records.setdefault(tenant, []).append(Record(pipeline.name, tenant, key, revision, content, deleted))
    if rows:
        last = str(max(row.revision for row in rows))
        _set(connection, mark, last)
        _set(connection, "taskbridge.keep_ids", "on")
        connection.exec_driver_sql(query("own_delivered", schema), {"source": pipeline.source})
        _set(connection, "taskbridge.keep_ids", "")
    size = pipeline.batch_size
    return [
        (tenant, tuple(those[at : at + size])) for tenant, those in records.items() for at in range(0, len(those), size)
    ]


def _set(connection: Connection, name: str, value: str) -> None:
    connection.exec_driver_sql(query("set_locally"), {"names": [name], "values": [value]})


@contextmanager
def _muted(connection: Connection, source: str, tenant: str) -> Iterator[None]:
    """Let what the handler writes back into its tenant's rows make no records, as in a batch's transaction."""
    _set(connection, "taskbridge.muted", f"{quoted(schema_of(connection))}:{source}:{tenant}" if source else "")
    yield
    _set(connection, "taskbridge.muted", "")


def _call(pipeline: Pipeline, batch: Batch) -> None:
    handler: Any = pipeline.handler
    returned = handler(batch)
    if inspect.isawaitable(returned):

        async def wait() -> Any:
            return await returned

        returned = async_to_sync(wait)()
    if isinstance(returned, RetryAfter):
        raise returned


class Deployed:
    """A deployment of one test: its database, and a key prefix of its own."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def run_all(self, *, through_failures: bool = False) -> int:
        """Look for what was saved, notified or not, and do all runs in this process; return how many there were.

        Args, Raises: as `taskbridge.testing.drain`.
        """
        runtime = runtime_of(self.app)
        for name in runtime.pipelines.names():
            runtime.know(runtime.pipelines[name])
            tail_round(runtime, name)
            # What was there before the first round of the tail.
            base_round(runtime, name)
        return drain_all(app=self.app, through_failures=through_failures)

    def notified(self, pipeline: str) -> dict[str, int]:
        """Return the tenants that were notified and not run since, each with the number of its events."""
        return notified(pipeline, app=self.app)


@contextmanager
def deployed(app: Celery) -> Iterator[Deployed]:
    """Let an app work on the test's database, which holds no record then, and under a key prefix of the test's own.

    The gate's clock stands still, and only runs move it.

    Raises:
        ConfigurationError: there is no database of Django's, or it is none of a test.
    """
    alias = alias_of_handlers()
    if alias is None:
        raise ConfigurationError("TASKBRIDGE_DATABASE is None: there is no database of Django's to work on")
    if not _is_of_a_test(alias):
        raise ConfigurationError(
            f"the database {connections[alias].settings_dict['NAME']} of the alias {alias!r} is none of a test, and "
            "`deployed` empties it",
            "use it in a TransactionTestCase, whose database Django makes",
        )
    with own_deployment(app, TASKBRIDGE_POSTGRES_URL=url_of(alias)) as runtime:
        # In a TestCase nothing is committed, and its transaction would be waited for.
        if not connections[alias].in_atomic_block:
            _empty(runtime)
        yield Deployed(app)


def _is_of_a_test(alias: str) -> bool:
    """Whether the database has a name that Django gives those of tests."""
    named = connections[alias].settings_dict
    return str(named["NAME"]).startswith(named["TEST"]["NAME"] or TEST_DATABASE_PREFIX)


def _empty(runtime: Runtime) -> None:
    """Delete what our tables hold; see `_KEPT`."""
    schema = runtime.settings.schema
    with runtime.engine.begin() as connection:
        which = {"schema": schema, "kept": [*_KEPT]}
        found = connection.exec_driver_sql(query("our_tables"), which).scalars()
        tables = ", ".join(f"{quoted(schema)}.{quoted(name)}" for name in found)
        connection.exec_driver_sql(filled("empty_tables", schema, {"tables": tables}))
