"""What a project's migrations say of TaskBridge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from django.core.management import CommandError
from django.db import router, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from sqlalchemy import Connection

from taskbridge import store
from taskbridge.django.configuration import ALIAS, alias_of_handlers
from taskbridge.django.lending import lent
from taskbridge.errors import TaskBridgeError
from taskbridge.process.translation import translated_errors
from taskbridge.settings import Settings
from taskbridge.store.queries import quoted

__all__ = ["AdoptTable"]


class AdoptTable(Operation):
    """Makes a table of the project's a source, as `taskbridge adopt` does: each change of a row is a record.

    It waits for open writers of the table as that does, for up to a minute, and not in the way of others. Backwards it
    gives the table up. It does nothing on a database that is not that of `TASKBRIDGE_DATABASE`.

    Args:
        source: what the source is called.
        model: the model, of the same app, whose table it is; its fields are named by their names in the model.
        table: in the place of `model`, the table, as SQL has its name; its columns are named by theirs.
        tenant: the field or column whose value is the tenant.
        key: the field or column, or several, of the record's key.
        columns: only changes of these, of the tenant and of the key count; none: all do.

    Raises:
        TypeError: neither `model` nor `table` is given, or both are.
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
    ) -> None:
        if (model is None) == (table is None):
            raise TypeError("AdoptTable takes either a model or a table: give one of the two")
        self.source: Final = source
        self.model: Final = model
        self.table: Final = table
        self.tenant: Final = tenant
        self.key: Final = (key,) if isinstance(key, str) else tuple(key)
        self.columns: Final = tuple(columns)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the arguments, for a migration that Django writes."""
        named: dict[str, Any] = {"tenant": self.tenant, "key": self.key[0] if len(self.key) == 1 else list(self.key)}
        for name in ("model", "table"):
            if (value := getattr(self, name)) is not None:
                named[name] = value
        if self.columns:
            named["columns"] = list(self.columns)
        return type(self).__qualname__, [self.source], named

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: the models stay as they are."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,  # noqa: ARG002 - Django's signature
        to_state: ProjectState,
    ) -> None:
        """Make the table a source."""
        with self._connection(app_label, schema_editor) as connection:
            if connection is not None:
                table, tenant, keys, watched = self._names(app_label, to_state)
                store.adopt_within(connection, table, tenant, keys, source=self.source, watched=watched)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,  # noqa: ARG002 - Django's signature
        to_state: ProjectState,  # noqa: ARG002
    ) -> None:
        """Take the triggers away; records and cursors stay."""
        with self._connection(app_label, schema_editor) as connection:
            if connection is not None:
                store.unadopt_within(connection, self.source)

    def describe(self) -> str:
        """Return what `manage.py migrate --plan` says."""
        return f"Adopt {self.model or self.table} as the source {self.source}"

    @property
    def migration_name_fragment(self) -> str:
        """A part of the name of a migration that Django names."""
        return f"adopt_{self.source}".replace("-", "_")

    @contextmanager
    def _connection(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> Iterator[Connection | None]:
        """Lend a connection in the migration's transaction; None: there is nothing to do here.

        Raises:
            CommandError: it cannot be done; the message says why, and what to do.
        """
        alias = schema_editor.connection.alias
        ours = alias_of_handlers()
        if ours is None:
            raise CommandError(
                f"{self.describe()}: {ALIAS} is None, so the records are in no database of Django's: "
                "run `taskbridge adopt` there instead"
            )
        if alias != ours or not router.allow_migrate(alias, app_label, model_name=self.model and self.model.lower()):
            yield None
            return
        if schema_editor.collect_sql:
            # What is run depends on the table, which may not be there yet.
            command = "manage.py taskbridge adopt ... --print-sql"
            schema_editor.collected_sql.append(f"-- {self.describe()}: `{command}` prints it")
            yield None
            return
        try:
            with translated_errors(), transaction.atomic(alias), lent(alias, Settings.read().schema) as connection:
                yield connection
        except TaskBridgeError as error:
            raise CommandError(f"{self.describe()}: {error}") from error

    def _names(self, app_label: str, state: ProjectState) -> tuple[str, str, list[str], list[str]]:
        """Return table, tenant, key and watched columns as the database has them."""
        if self.model is None:
            assert self.table is not None  # noqa: S101 - for the type: `__init__` refuses else
            return self.table, self.tenant, list(self.key), list(self.columns)
        fields: Any = state.apps.get_model(app_label, self.model)._meta

        def column(name: str) -> str:
            return str(fields.pk.column if name == "pk" else fields.get_field(name).column)

        table = fields.db_table
        # Django lets a name stand between quotation marks, as a way to write a schema.
        name = table if table.startswith('"') else quoted(table)
        return name, column(self.tenant), [*map(column, self.key)], [*map(column, self.columns)]
