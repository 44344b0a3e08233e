"""The migration operation that adopts a table, and queries about adoptions in a project's migrations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from django.apps import apps
from django.conf import settings
from django.core.management import CommandError
from django.db import connections, router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from sqlalchemy import Connection

from taskbridge import store
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import spoken
from taskbridge.django.configuration import ALIAS, alias_of_handlers
from taskbridge.django.sessions import sqlalchemy_connection
from taskbridge.errors import TaskBridgeError
from taskbridge.settings import Settings
from taskbridge.store.adopted import Definition, known_as
from taskbridge.store.queries import quoted

__all__ = ["AdoptTable", "adopt_again", "adopting_migration", "unadopted"]


class AdoptTable(Operation):
    """Use one of the project's tables as a source, like `taskbridge adopt`. Each change of a row is then recorded.

    The operation waits up to a minute for open transactions that write to the table. It does not block other
    transactions meanwhile. It does nothing on databases other than `TASKBRIDGE_DATABASE`.

    If you migrate backwards, the operation unadopts the table. If an earlier operation adopted the same source, that
    adoption is repeated at the end of `manage.py migrate`.

    Args:
        source: the name of the source.
        model: a model of the same app. With `model`, tenant, key and columns are names of its fields.
        table: instead of `model`, the name of the table in SQL. With `table`, tenant, key and columns are names of
            its columns.
        tenant: the field or column with the tenant.
        key: the field or column with the record's key, or several of them.
        columns: record only changes of these fields or columns, the tenant and the key. If empty, record all changes.
        from_now_on: skip existing rows, without a reminder to backfill.

    Raises:
        TypeError: both or neither of `model` and `table` are given.
    """

    reversible = True
    reduces_to_sql = True
    category = getattr(Operation, "category", None)
    elidable: ClassVar[bool] = False

    def __init__(
        self,
        source: str,
        *,
        tenant: str,
        key: str | Sequence[str],
        model: str | None = None,
        table: str | None = None,
        columns: Sequence[str] = (),
        from_now_on: bool = False,
    ) -> None:
        if (model is None) == (table is None):
            raise TypeError("AdoptTable takes either a model or a table")
        self.source: Final = source
        self.model: Final = model
        self.table: Final = table
        self.tenant: Final = tenant
        self.key: Final = (key,) if isinstance(key, str) else tuple(key)
        self.columns: Final = tuple(columns)
        self.from_now_on: Final = from_now_on

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Do nothing: the models do not change."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,  # noqa: ARG002 - Django's signature
        to_state: ProjectState,
    ) -> None:
        """Adopt the table."""
        with self._connection(app_label, schema_editor) as connection:
            if connection is not None:
                self._adopt(connection, app_label, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,  # noqa: ARG002 - Django's signature
        to_state: ProjectState,  # noqa: ARG002
    ) -> None:
        """Remove the triggers; records and cursors are kept."""
        with self._connection(app_label, schema_editor) as connection:
            if connection is not None:
                store.unadopt(connection, self.source)

    def _adopt(self, connection: Connection, app_label: str, state: ProjectState) -> None:
        table, tenant, keys, watched = self._names(app_label, state)
        adopted = store.adoption(connection, table, tenant, keys, source=self.source, watched=watched)
        store.adopt(connection, adopted, from_now_on=self.from_now_on)

    def describe(self) -> str:
        """Return the description for `manage.py migrate --plan`."""
        return f"Adopt {self.model or self.table} as the source {self.source}"

    @property
    def migration_name_fragment(self) -> str:
        """Part of the name of a migration that Django generates."""
        return f"adopt_{self.source}".replace("-", "_")

    @contextmanager
    def _connection(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> Iterator[Connection | None]:
        """Yield a connection in the migration's transaction; None: there is nothing to do.

        Raises:
            CommandError: the operation failed; the message says why, and what to do.
        """
        alias = schema_editor.connection.alias
        ours = alias_of_handlers()
        if ours is None:
            raise CommandError(
                f"{self.describe()}: {ALIAS} is None, so the records are not in one of Django's databases: use "
                "`taskbridge adopt` instead"
            )
        if alias != ours or not router.allow_migrate(alias, app_label, model_name=self.model and self.model.lower()):
            yield None
            return
        if schema_editor.collect_sql:
            # The statements depend on the table, which may not exist yet.
            command = "manage.py taskbridge adopt ... --print-sql"
            schema_editor.collected_sql.append(f"-- {self.describe()}: `{command}` prints it")
            yield None
            return
        if not apps.is_installed("taskbridge.django"):
            raise CommandError(f'{self.describe()}: add "taskbridge.django" to INSTALLED_APPS')
        try:
            schema = Settings.read().schema
            with translated_errors(), transaction.atomic(alias), sqlalchemy_connection(alias, schema) as connection:
                yield connection
        except TaskBridgeError as error:
            raise CommandError(spoken(f"{self.describe()}: {error}")) from error

    def _names(self, app_label: str, state: ProjectState) -> tuple[str, str, list[str], list[str]]:
        """Return the names of the table and of the tenant, key and watched columns in the database."""
        if self.model is None:
            assert self.table is not None  # noqa: S101 - `__init__` has checked this
            return self.table, self.tenant, list(self.key), list(self.columns)
        fields: Any = state.apps.get_model(app_label, self.model)._meta

        def column(name: str) -> str:
            return str(fields.pk.column if name == "pk" else fields.get_field(name).column)

        table = fields.db_table
        # Django accepts quoted names, which can include a schema.
        name = table if table.startswith('"') else quoted(table)
        return name, column(self.tenant), [*map(column, self.key)], [*map(column, self.columns)]


def adoptions(migration: Migration) -> list[AdoptTable]:
    """Return the operations of a migration that adopt tables."""
    return [one for operation in migration.operations for one in _flat(operation) if isinstance(one, AdoptTable)]


def _flat(operation: Operation) -> list[Operation]:
    """Return an operation, or the parts of a SeparateDatabaseAndState."""
    parts: list[Operation] = getattr(operation, "database_operations", [])
    return [one for part in parts for one in _flat(part)] or [operation]


def _state_after(loader: MigrationLoader, key: tuple[str, str], one: AdoptTable) -> ProjectState:
    """Return the models as of an operation of a migration."""
    state: ProjectState = loader.project_state(key, at_end=False)
    for operation in loader.graph.nodes[key].operations:
        operation.state_forwards(key[0], state)
        if one in _flat(operation):
            break
    return state


def unadopted(connection: Any, there: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the migration, source and command of each applied adoption whose source is missing."""
    loader, in_force = _in_force(connection)
    for source, (key, one) in in_force.items():
        if source not in there:
            table, tenant, keys, watched = one._names(key[0], _state_after(loader, key, one))
            yield ".".join(key), source, Definition(source, tenant, tuple(keys), tuple(watched)).command(table)


def adopting_migration(alias: str, source: str) -> str | None:
    """Return a migration that adopts the source, applied or not, even if tests skip it."""
    from django.test.utils import override_settings  # noqa: PLC0415 - for tests alone

    given: Any = settings.MIGRATION_MODULES
    # pytest-django's `--nomigrations` sets an object that returns None for every app.
    modules = {label: module for label, module in given.items() if module} if isinstance(given, dict) else {}
    with override_settings(MIGRATION_MODULES=modules):
        loader = MigrationLoader(None)
    nodes = sorted(loader.graph.nodes)
    return next((".".join(key) for key, one in _adoptions(loader, alias, nodes) if one.source == source), None)


def adopt_again(using: str, plan: Sequence[tuple[Migration, bool]] = (), **_: Any) -> None:
    """After migrating backwards, repeat the earlier adoptions of the sources that were unadopted.

    This is done at the end, when columns and tables have their earlier names again.
    """
    reversed_sources = {one.source for migration, backwards in plan if backwards for one in adoptions(migration)}
    if not reversed_sources:
        return
    connection = connections[using]
    loader, in_force = _in_force(connection)
    for source in in_force.keys() & reversed_sources:
        key, one = in_force[source]
        state = _state_after(loader, key, one)
        with connection.schema_editor() as editor, one._connection(key[0], editor) as session:
            # `migrate --fake` leaves the adoption as it is.
            if session is not None and ((before := known_as(session, source)) is None or before.ended):
                one._adopt(session, key[0], state)


def _in_force(connection: Any) -> tuple[MigrationLoader, dict[str, tuple[tuple[str, str], AdoptTable]]]:
    """Return the last applied adoption of each source, with its migration and the loader of migrations."""
    loader = MigrationLoader(connection)
    applied = loader.graph.nodes.keys() & loader.applied_migrations.keys()
    in_order = sorted(applied, key=lambda key: len(loader.graph.forwards_plan(key)))
    return loader, {one.source: (key, one) for key, one in _adoptions(loader, connection.alias, in_order)}


def _adoptions(
    loader: MigrationLoader, alias: str, keys: Iterable[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], AdoptTable]]:
    """Yield the adoptions in these migrations that apply to this database, each with its migration."""
    for key in keys:
        for one in adoptions(loader.graph.nodes[key]):
            if router.allow_migrate(alias, key[0], model_name=one.model and one.model.lower()):
                yield key, one
