"""`AdoptTable` in a project's migrations: what it adopts, the way back, and what it says where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError
from django.db import connections, migrations, models
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test.utils import override_settings
from sqlalchemy import Engine

from taskbridge.django.migrations import AdoptTable
from tests.deployment import Deployment
from tests.django.shop.models import Order
from tests.store.adopting import Reader, rows

pytestmark = pytest.mark.usefixtures("project")
TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'taskbridge%'"


def migration_of(*operations: Any) -> migrations.Migration:
    """Return the project's second migration."""
    made = migrations.Migration("0002", "shop")
    made.__dict__["operations"] = [*operations]
    return made


def migrate(operation: Any, *, back: bool = False, alias: str = "default") -> None:
    """Run an operation, or its way back, as a migration does."""
    state = ProjectState.from_apps(apps)
    migration = migration_of(operation)
    with connections[alias].schema_editor(atomic=True) as editor:
        (migration.unapply if back else migration.apply)(state, editor)


def test_a_model_is_adopted_by_its_fields_and_given_up_backwards(deployment: Deployment) -> None:
    Order.objects.create(number="before")
    # the column of the field is customer_id
    operation = AdoptTable("orders", model="Order", tenant="customer", key="pk", columns=["details"])
    migrate(operation)
    adopted = "SELECT name, tenant_column, key_columns, watched_columns FROM taskbridge.adopted"
    assert rows(deployment.engine, adopted) == [("public.shop_order", "customer_id", ["id"], ["details"])]
    assert rows(deployment.engine, TRIGGERS) == [(4,)]
    migrate(operation, back=True)
    assert rows(deployment.engine, TRIGGERS) == [(0,)]


def test_a_table_is_adopted_by_its_columns(deployment: Deployment) -> None:
    migrate(AdoptTable("orders", table="shop_order", tenant="number", key=["number", "id"]))
    order = Order.objects.create(number="acme")
    assert Reader(deployment.engine).seen() == {"acme": [f'["acme", "{order.pk}"]']}


def test_what_the_migration_does_after_it_takes_part_in_its_transaction(engine: Engine) -> None:
    state = ProjectState.from_apps(apps)
    fails = migrations.RunSQL("SELECT 1 / 0")
    migration = migration_of(AdoptTable("orders", model="Order", tenant="number", key="id"), fails)
    with pytest.raises(Exception, match="division by zero"), connections["default"].schema_editor() as editor:
        migration.apply(state, editor)
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []
    assert rows(engine, TRIGGERS) == [(0,)]


def test_a_table_that_cannot_be_adopted_fails_the_migration_with_what_to_do() -> None:
    with pytest.raises(CommandError, match=r"^Adopt Order as the source orders: .*details is of type jsonb"):
        migrate(AdoptTable("orders", model="Order", tenant="details", key="id"))
    with pytest.raises(CommandError, match="no table was adopted as the source 'orders'"):
        migrate(AdoptTable("orders", model="Order", tenant="number", key="id"), back=True)
    with (
        override_settings(TASKBRIDGE_DATABASE=None),
        pytest.raises(CommandError, match="the records are in no database of Django's: run `taskbridge adopt` there"),
    ):
        migrate(AdoptTable("orders", model="Order", tenant="number", key="id"))
    with pytest.raises(TypeError, match="give one of the two"):
        AdoptTable("orders", tenant="number", key="id")


def test_another_database_than_that_of_the_records_is_left_alone(engine: Engine) -> None:
    migrate(AdoptTable("orders", model="Order", tenant="number", key="id"), alias="other")
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []


def test_django_can_write_it_into_a_migration() -> None:
    made = AdoptTable("orders", model="Order", tenant="customer", key="id", columns=["details"])
    migration = migration_of(made, migrations.AddField("order", "more", models.TextField(default="")))
    text = MigrationWriter(migration, include_header=False).as_string()
    assert "taskbridge.django.migrations.AdoptTable(" in text
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 - what Django has written
    again = found["Migration"].operations[0]
    assert again.deconstruct() == made.deconstruct()
    assert (made.describe(), made.migration_name_fragment) == ("Adopt Order as the source orders", "adopt_orders")
