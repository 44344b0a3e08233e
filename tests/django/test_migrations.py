"""`AdoptTable` in a project's migrations: what it adopts, the way back, and what it says where it cannot."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, migrations, models
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test.utils import override_settings
from sqlalchemy import Engine

from taskbridge.django.configuration import NAMES
from taskbridge.django.migrations import AdoptTable
from taskbridge.store import unadopt
from tests.deployment import Deployment
from tests.django.shop.models import Order
from tests.store.adopting import Reader, rows, run

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
    # by its table and columns
    migrate(AdoptTable("numbers", table="shop_order", tenant="number", key=["number", "id"]))
    order = Order.objects.create(number="acme")
    assert Reader(deployment.engine, "numbers").seen() == {"acme": [f'["acme", "{order.pk}"]']}


def test_a_project_that_cannot_be_used_is_told_what_to_change() -> None:
    operation = AdoptTable("orders", model="Order", tenant="customer", key="pk")
    with override_settings(TASKBRIDGE_DATABASE="lite"), pytest.raises(CommandError, match="set TASKBRIDGE_DATABASE"):
        migrate(operation, alias="lite")
    with override_settings(INSTALLED_APPS=["tests.django.shop"]), pytest.raises(CommandError, match="INSTALLED_APPS"):
        migrate(operation)


def reminders() -> list[str]:
    with override_settings(TASKBRIDGE_REDIS_URL="redis://a"):
        return [one.msg for one in run_checks(databases=["default"])]


def test_of_rows_from_before_it_is_told_unless_the_migration_or_a_test_leaves_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Order.objects.create(number="before")
    operation = partial(AdoptTable, "orders", model="Order", tenant="number", key="id")
    migrate(operation())
    # The database has the name that a test gave it.
    assert reminders() == []
    monkeypatch.setitem(NAMES, "default", connections["default"].settings_dict["NAME"])
    (told,) = reminders()
    assert "rows that existed before" in told
    migrate(operation(), back=True)
    migrate(operation(from_now_on=True))
    assert reminders() == []


def test_what_the_migration_does_after_it_takes_part_in_its_transaction_and_another_database_is_left_alone(
    engine: Engine,
) -> None:
    state = ProjectState.from_apps(apps)
    adopting = AdoptTable("orders", model="Order", tenant="number", key="id")
    migrate(adopting, alias="other")
    migration = migration_of(adopting, migrations.RunSQL("SELECT 1 / 0"))
    with pytest.raises(Exception, match="division by zero"), connections["default"].schema_editor() as editor:
        migration.apply(state, editor)
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []
    assert rows(engine, TRIGGERS) == [(0,)]


@override_settings(MIGRATION_MODULES={"shop": "tests.django.shop.adopted_again"}, TASKBRIDGE_REDIS_URL="redis://a")
def test_backwards_an_earlier_adoption_of_the_source_is_in_force_again(deployment: Deployment) -> None:
    def go(where: str) -> None:
        call_command("migrate", "shop", where, verbosity=0)

    def watched() -> list[tuple[Any, ...]]:
        return rows(deployment.engine, "SELECT watched_columns FROM taskbridge.adopted WHERE ended_at IS NULL")

    go("second_name")
    assert watched() == [(["amount"],)]
    go("first_lines")
    # the column has its first name again, and each write makes a record
    assert watched() == [(["total"],)]
    assert rows(deployment.engine, TRIGGERS) == [(4,)]
    run(deployment.engine, "INSERT INTO shop_line (customer, total) VALUES ('acme', 1)", "UPDATE shop_line SET total=2")
    assert Reader(deployment.engine, "lines").seen() == {"acme": ["1"]}
    assert [one.id for one in run_checks(databases=["default"])] == []
    go("zero")
    assert rows(deployment.engine, TRIGGERS) == [(0,)]


@override_settings(MIGRATION_MODULES={"shop": "tests.django.shop.adopted_again"})
def test_migrations_that_are_only_recorded_as_reversed_change_no_adoption(deployment: Deployment) -> None:
    call_command("migrate", "shop", "second_name", verbosity=0)
    call_command("migrate", "shop", "first_lines", fake=True, verbosity=0)
    watched = "SELECT watched_columns FROM taskbridge.adopted WHERE ended_at IS NULL"
    assert rows(deployment.engine, watched) == [(["amount"],)]
    assert rows(deployment.engine, TRIGGERS) == [(4,)]


@override_settings(MIGRATION_MODULES={"shop": "tests.django.shop.adopted_again"}, TASKBRIDGE_REDIS_URL="redis://a")
def test_a_migration_that_is_applied_and_has_adopted_nothing_is_told(deployment: Deployment) -> None:
    call_command("migrate", "shop", "second_name", verbosity=0)
    unadopt(deployment.engine, "lines")
    (found,) = run_checks(databases=["default"])
    assert found.id == "taskbridge.W005"
    assert "shop.second_name" in found.msg
    assert "manage.py taskbridge adopt" in str(found.hint)
    assert "--source lines" in str(found.hint)


def test_a_table_that_cannot_be_adopted_fails_the_migration_with_what_to_do() -> None:
    with pytest.raises(CommandError, match=r"^Adopt Order as the source orders: .*details is of type jsonb"):
        migrate(AdoptTable("orders", model="Order", tenant="details", key="id"))
    with pytest.raises(CommandError, match="no table was adopted as the source 'orders'"):
        migrate(AdoptTable("orders", model="Order", tenant="number", key="id"), back=True)
    with (
        override_settings(TASKBRIDGE_DATABASE=None),
        pytest.raises(CommandError, match="the records are not in one of Django's databases: use `taskbridge adopt`"),
    ):
        migrate(AdoptTable("orders", model="Order", tenant="number", key="id"))
    with pytest.raises(TypeError, match="either a model or a table"):
        AdoptTable("orders", tenant="number", key="id")


def test_django_can_write_it_into_a_migration() -> None:
    options: dict[str, Any] = {"tenant": "customer", "key": "id", "columns": ["details"], "from_now_on": True}
    made = AdoptTable(source="orders", model="Order", **options)
    migration = migration_of(made, migrations.AddField("order", "more", models.TextField(default="")))
    text = MigrationWriter(migration, include_header=False).as_string()
    assert "taskbridge.django.migrations.AdoptTable(" in text
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 - what Django has written
    again = found["Migration"].operations[0]
    assert again.deconstruct() == made.deconstruct()
    assert (made.describe(), made.migration_name_fragment) == ("Adopt Order as the source orders", "adopt_orders")
