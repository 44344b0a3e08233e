"""Helpers for Django's test classes.

In a `TestCase`, nothing is committed, so no worker could see the records. Use `deliver`: it calls the handler with the
saved records, in the test's own transaction. In a `TransactionTestCase`, use `deployed`, with the real gate, cursor and
runner.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from asgiref.sync import async_to_sync
from celery import Celery
from django.db import connections, transaction
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from sqlalchemy import Connection

from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.django.checkout import CAUGHT
from taskbridge.django.configuration import alias_of_handlers, url_of
from taskbridge.django.migrations import adopting_migration
from taskbridge.django.sessions import sqlalchemy_connection
from taskbridge.errors import ConfigurationError, HandlerMistake
from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings
from taskbridge.store.adopted import known_as, present
from taskbridge.store.documents import decoded
from taskbridge.store.orm import BatchSession
from taskbridge.store.queries import filled, query, quoted, schema_of
from taskbridge.store.schema import VERSION_TABLE
from taskbridge.testing.deploying import own_deployment
from taskbridge.testing.inline import deployment_of_test, drain_all, notified
from taskbridge.worker.handler import check_returned, done_first
from taskbridge.worker.poller import poll_changes, reconcile

__all__ = ["Delivered", "Deployed", "deliver", "deployed"]

_KEPT: Final = ("adopted", "taskbridge_cluster", VERSION_TABLE)
"""The tables that `deployed` does not empty: adoptions, the cluster, and the schema version."""
_OWNER: Final = "0"
"""Lower than the tokens of all runs."""


class Delivered(Batch):
    """A batch that was delivered to the handler. `retry_after` is the `RetryAfter` that the handler returned."""

    retry_after: RetryAfter | None = None


def deliver(name: str) -> list[Delivered]:
    """Call a pipeline's handler with the records that this test's transaction has written since the last call.

    Batches are the same as in a worker: each has the records of one tenant, oldest first. Returns the batches in order.
    `batch.rejected` has the records that the handler rejected. The handler is called immediately, without runs, delays,
    rate limits or retries.

    If the handler returns `RetryAfter`, it is in `batch.retry_after`. The handler's writes are then kept only if it
    marked records with `batch.handled`, as in a worker. This call then delivers nothing more. The next call delivers
    the other records.

    Raises:
        Exception: the error that the handler raised, including `RetryAfter`. All writes of this call are rolled back,
            and the next call delivers the same records.
        HandlerMistake: the handler did something that is not allowed, for example returned an iterator.
        ConfigurationError: there is no transaction, as in a TransactionTestCase. Or there are no records, because a
            migration that adopts the source's table has not run in the test database.
        UnknownPipeline: no loaded module declares the pipeline.
    """
    runtime = Runtime(Settings.read())
    pipeline, alias = runtime.pipelines[name], alias_of_handlers()
    if alias is None or not connections[alias].in_atomic_block:
        raise ConfigurationError(
            "`deliver` only works in the transaction of a TestCase",
            f"add {alias!r} to its `databases`; in a TransactionTestCase use `deployed`",
        )
    readers = sum(runtime.pipelines[one].source == pipeline.source for one in runtime.pipelines.names())
    with transaction.atomic(alias), sqlalchemy_connection(alias, runtime.settings.schema) as connection:
        batches: list[Delivered] = []
        left: list[Record] = []
        for tenant, records in _deliverable(connection, pipeline, alias):
            if batches and batches[-1].retry_after is not None:
                left += records
                continue
            muted = _muted(connection, pipeline, tenant) if readers == 1 else nullcontext()
            batch, kept = _handled(pipeline, tenant, records, connections[alias], connection, muted)
            batches.append(batch)
            left += records[kept:]
        if batches:
            _set(connection, _mark("left", pipeline), ",".join(str(record.revision) for record in left))
    return batches


def _handled(
    pipeline: Pipeline,
    tenant: str,
    records: Sequence[Record],
    wrapper: Any,
    connection: Connection,
    muted: AbstractContextManager[None],
) -> tuple[Delivered, int]:
    """Call the handler with a batch; return the batch, and how many of its first records are done."""
    used = False

    def note_use(what: Callable[..., Any], *given: Any) -> Any:
        nonlocal used
        used = True
        return what(*given)

    # A batch that asks to wait without marking records is rolled back separately.
    with transaction.atomic(wrapper.alias):
        with muted, wrapper.execute_wrapper(note_use), _session(connection) as session:
            batch = Delivered(
                pipeline.name,
                tenant,
                "test",
                records,
                connect=lambda: note_use(lambda: connection),
                open_session=lambda: note_use(lambda: session),
                owned=lambda: True,
            )
            returned = _called(pipeline, batch)
            if wrapper.needs_rollback:
                raise HandlerMistake(CAUGHT)
        if not isinstance(returned, RetryAfter):
            return batch, len(records)
        batch.retry_after, kept = returned, done_first(batch, records, wrote=used)
        if not kept:
            transaction.set_rollback(True, wrapper.alias)
        return batch, kept


@contextmanager
def _session(connection: Connection) -> Iterator[BatchSession]:
    """Yield the batch's session, which is flushed at the end, as in a worker."""
    session = BatchSession(connection)
    try:
        yield session
        session.commit()
    finally:
        session.end()


def _deliverable(connection: Connection, pipeline: Pipeline, alias: str) -> list[tuple[str, tuple[Record, ...]]]:
    """Return batches of what this transaction has written since the last call, and store the new position.

    Raises:
        ConfigurationError: there are no records, and there can be none.
    """
    schema, document = schema_of(connection), None
    with transaction.atomic(alias):
        if (adopted := known_as(connection, pipeline.source)) is not None:
            document = present(connection, adopted).document
        # This also restores the search path.
        transaction.set_rollback(True, alias)
    mark = _mark("delivered", pipeline)
    which = {"source": pipeline.source, "mark": mark, "left": _mark("left", pipeline)}
    rows = connection.exec_driver_sql(query("own_records", schema), which).all()
    if not rows:
        _check_adopted(connection, pipeline.source, alias)
    records: dict[str, list[Record]] = {}
    for tenant, key, revision, _, _ in rows:
        values = {"source": pipeline.source, "tenant": tenant, "key": key, "revision": revision, "small": 2**31 - 1}
        text, deleted, _ = connection.exec_driver_sql(query("one_document", schema, document), values).one()
        content = {} if text is None else decoded(text)[0]
        records.setdefault(tenant, []).append(
            Record(pipeline.name, tenant, key, revision, content, deleted, text or "{}")
        )
    if rows:
        last = str(max(max(row.id, row.so_far) for row in rows))
        _set(connection, mark, last)
        _set(connection, "taskbridge.keep_ids", "on")
        connection.exec_driver_sql(query("own_delivered", schema), {"source": pipeline.source})
        _set(connection, "taskbridge.keep_ids", "")
    size = pipeline.batch_size
    return [
        (tenant, tuple(those[at : at + size])) for tenant, those in records.items() for at in range(0, len(those), size)
    ]


def _check_adopted(connection: Connection, source: str, alias: str) -> None:
    """Check that a table is adopted as the source, if there is a migration for it.

    Raises:
        ConfigurationError: no table is adopted in the test database.
    """
    adopted = known_as(connection, source)
    if (adopted is None or adopted.ended) and (migration := adopting_migration(alias, source)) is not None:
        raise ConfigurationError(
            f"no table is adopted as {source} in the test database, so a test's changes are not recorded: the "
            f"migration {migration}, which adopts it, was not run",
            "run migrations in tests: without `--nomigrations`, None in MIGRATION_MODULES, or MIGRATE=False in TEST",
        )


def _mark(what: str, pipeline: Pipeline) -> str:
    """Return the name of the transaction parameter that stores a pipeline's position."""
    return f"taskbridge.{what}_{pipeline.name.replace('-', '_')}"


def _set(connection: Connection, name: str, value: str) -> None:
    values = {"names": [name], "values": [value], "locally": True}
    connection.exec_driver_sql(query("set_parameters"), values)


@contextmanager
def _muted(connection: Connection, pipeline: Pipeline, tenant: str) -> Iterator[None]:
    """As in a batch's transaction, do not record what the handler writes back into its tenant's rows."""
    owner = {"pipeline": pipeline.name, "tenant": tenant, "token": _OWNER}
    connection.exec_driver_sql(query("own_cursor", schema_of(connection)), owner)
    _set(connection, "taskbridge.batch", _OWNER)
    _set(connection, "taskbridge.muted", f"{pipeline.source}:{pipeline.name}:{tenant}")
    yield
    _set(connection, "taskbridge.muted", "")


def _called(pipeline: Pipeline, batch: Batch) -> Any:
    """Call the handler, await it if necessary, and return its result."""
    handler: Any = pipeline.handler
    returned = handler(batch)
    if inspect.isawaitable(returned):

        async def wait() -> Any:
            return await returned

        return async_to_sync(wait)()
    check_returned(returned)
    return returned


class Deployed:
    """The deployment of a test: its database and its own key prefix."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def run_all(self, *, through_failures: bool = False) -> int:
        """Find all saved records, with or without an event, and perform all runs in this process. Return their number.

        Arguments and errors are the same as for `taskbridge.testing.drain`. ConfigurationError is also raised in these
        cases:

        - inside a transaction, such as a TestCase's;
        - after the `deployed` block has ended;
        - if nothing was found, because a migration that adopts a table was not run in the test database.
        """
        alias = alias_of_handlers()
        if alias is not None and connections[alias].in_atomic_block:
            raise ConfigurationError(
                "`run_all` cannot be used in a transaction, because runs only see what is committed",
                "use `deliver` in a TestCase; elsewhere call it after the `atomic` block",
            )
        runtime = deployment_of_test(self.app)
        for name in runtime.pipelines.names():
            runtime.register(runtime.pipelines[name])
            poll_changes(runtime, name)
            # This finds what existed before the first poll.
            reconcile(runtime, name)
        runs = drain_all(app=self.app, through_failures=through_failures)
        if not runs and alias is not None:
            with runtime.engine.connect() as connection:
                for name in runtime.pipelines.names():
                    _check_adopted(connection, runtime.pipelines[name].source, alias)
        return runs

    def notified(self, pipeline: str) -> dict[str, int]:
        """Return the tenants that were notified since their last run, each with the number of its events.

        Raises:
            ConfigurationError: the block of `deployed` has ended.
        """
        return notified(pipeline, app=self.app)


@contextmanager
def deployed(app: Celery) -> Iterator[Deployed]:
    """Make an app use the test database, without existing records, and its own key prefix.

    The gate's clock is frozen. Only runs advance it.

    Raises:
        ConfigurationError: TASKBRIDGE_DATABASE is None, or the database is not a test database.
    """
    alias = alias_of_handlers()
    if alias is None:
        raise ConfigurationError("TASKBRIDGE_DATABASE is None, so there is no Django database to use")
    if not _is_of_a_test(alias):
        raise ConfigurationError(
            f"the database {connections[alias].settings_dict['NAME']} of the alias {alias!r} is not a test database, "
            "and `deployed` would empty it",
            "use it in a TransactionTestCase, for which Django creates a database",
        )
    with own_deployment(app, TASKBRIDGE_POSTGRES_URL=url_of(alias)) as runtime:
        # In a TestCase nothing has been committed, and this would wait for its transaction.
        if not connections[alias].in_atomic_block:
            _empty(runtime)
        yield Deployed(app)


def _is_of_a_test(alias: str) -> bool:
    """Whether the database has the name of a test database."""
    named = connections[alias].settings_dict
    return str(named["NAME"]).startswith(named["TEST"]["NAME"] or TEST_DATABASE_PREFIX)


def _empty(runtime: Runtime) -> None:
    """Empty our tables, except those of `_KEPT`."""
    schema = runtime.settings.schema
    with runtime.engine.begin() as connection:
        which = {"schema": schema, "kept": [*_KEPT]}
        found = connection.exec_driver_sql(query("our_tables"), which).scalars()
        tables = ", ".join(f"{quoted(schema)}.{quoted(name)}" for name in found)
        connection.exec_driver_sql(filled("empty_tables", schema, {"tables": tables}))
