"""The Django shop of `examples/`: its tests, its commands, and how much of it is TaskBridge's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from examples.warehouse import warehouse
from taskbridge.embedded import Servers
from taskbridge.testing.servers import fresh_database, open_directory
from tests.deployment import ROOT, Deployment, Worker
from tests.django.conftest import database
from tests.shops.kills import Scene, Shop, survive

pytestmark = pytest.mark.e2e

SHOP = ROOT / "examples" / "django_shop"
ADOPT = ["taskbridge", "adopt", "orders_order", "--tenant", "customer", "--key", "id", "--source", "orders"]


def variables(url: str, redis_url: str) -> dict[str, str]:
    """Return the environment of the shop on a database."""
    where = database(make_url(url))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKBRIDGE_", "DJANGO_", "PG"))}
    names = {"NAME": "PGDATABASE", "USER": "PGUSER", "PASSWORD": "PGPASSWORD", "HOST": "PGHOST", "PORT": "PGPORT"}
    of_libpq = {name: where[part] for part, name in names.items() if where[part]}
    return {
        **kept,
        **of_libpq,
        "CELERY_BROKER_URL": redis_url,
        "PYTHONPATH": f"{ROOT}:{SHOP}",
    }


def manage(environment: dict[str, str], *arguments: str, status: int = 0) -> str:
    """Run a command of the shop and return what it printed, on stdout and then on stderr."""
    ended = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=SHOP,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@contextmanager
def shop(servers: Servers, redis_url: str) -> Iterator[dict[str, str]]:
    """The environment of a shop whose database is empty."""
    with fresh_database(servers, "template1") as url:
        yield variables(url, redis_url)


def test_the_shop_s_own_tests_pass_in_django_s_classes(taskbridge_servers: Servers) -> None:
    with shop(taskbridge_servers, taskbridge_servers.redis_url) as environment:
        said = manage(environment, "test", "--noinput")
    assert "Ran 9 tests" in said
    assert "OK" in said


@pytest.mark.slow
def test_the_shop_s_commands_and_what_its_migration_says(taskbridge_servers: Servers) -> None:
    with shop(taskbridge_servers, taskbridge_servers.redis_url) as environment:
        assert "taskbridge.W004" in manage(environment, "check", "--database", "default")
        assert "Applying orders.0002_adopt_orders... OK" in manage(environment, "migrate")
        assert "no issues" in manage(environment, "check", "--database", "default")
        assert "No changes detected" in manage(environment, "makemigrations", "--check")
        # as the program would have adopted it
        assert "was adopted before: nothing to do" in manage(environment, *ADOPT)
        assert "Adopt Order as the source orders" in manage(environment, "sqlmigrate", "orders", "0002")
        assert '"orders": {' in manage(environment, "taskbridge", "status", "--json")
        assert "no tenant is called 'nobody'" in manage(environment, "taskbridge", "status", "nobody", status=1)


TRIGGERS = """
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'taskbridge_orders_%'")
    print("triggers", *cursor.fetchone())
"""


@pytest.mark.slow
def test_the_shop_s_migration_has_a_way_back(taskbridge_servers: Servers) -> None:
    with shop(taskbridge_servers, taskbridge_servers.redis_url) as environment:
        manage(environment, "migrate")
        assert "Unapplying orders.0002_adopt_orders... OK" in manage(environment, "migrate", "orders", "0001")
        left = ("shell", "-c", TRIGGERS)
        assert "triggers 0" in manage(environment, *left)
        manage(environment, "migrate")
        assert "triggers 4" in manage(environment, *left)


PLACE = """
from orders.models import Order, Shipment
from orders.services import place
for number in range(20):
    place(f"customer {number % 3}", "bicycle", 1)
Order.objects.bulk_create(Order(customer="nobody notified", item="bell", amount=1) for _ in range(5))
"""
COUNT = """
from django.db.models import Max
from orders.models import Shipment
print("told", Shipment.objects.count(), Shipment.objects.aggregate(most=Max("tellings"))["most"])
"""


def test_a_worker_of_the_shop_sends_each_order(
    deployment: Deployment, taskbridge_servers: Servers, tmp_path: Path
) -> None:
    with shop(taskbridge_servers, deployment.settings.redis_url) as environment, warehouse() as stock:
        environment["WAREHOUSE_URL"] = stock.url
        manage(environment, "migrate")
        manage(environment, "shell", "-c", PLACE)
        worker = Worker(environment, tmp_path / "shop.log", ["-n", "shop@test", "-c", "2"], app="shop")
        try:
            worker.wait_until_ready()
            for _ in range(20):
                if "told 25 1" in (said := manage(environment, "shell", "-c", COUNT)):
                    break
            assert "told 25 1" in said, worker.text()
            assert len(stock.orders) == 25
            assert "ERROR" not in worker.text()
        finally:
            worker.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_orders_get_through_while_each_process_is_killed_in_turn() -> None:
    program = str(SHOP / "manage.py")
    shop = Shop(
        web=(program, "runserver", "--noreload", "127.0.0.1:{port}"),
        worker=("-m", "celery", "-A", "shop", "worker"),
        prepare=((program, "migrate"),),
        environment=variables,
        table="orders_order",
    )
    with open_directory() as folder:
        survive(shop, folder, check_shipments)


def check_shipments(scene: Scene) -> None:
    """What the handler has written with the ORM is what the warehouse has, and no call was written down twice.

    A call whose batch was rolled back is not written down until the record comes again, which is rejected if the order
    has another amount by then: of rejected orders the last telling may be missing.
    """
    told = {
        (customer, str(number)): (amount, tellings)
        for customer, number, amount, tellings in scene.rows(
            'SELECT customer, "order", amount, tellings FROM orders_shipment'
        )
    }
    keys = defaultdict[tuple[str, str], set[str]](set)
    for one in scene.stock.accepted:
        keys[one.customer, one.number].add(one.key)
    assert {place: tellings for place, (_, tellings) in told.items() if tellings > len(keys[place])} == {}
    rejected = {
        (customer, str(number))
        for customer, number in scene.rows("SELECT customer, id FROM orders_order WHERE amount < 1")
    }
    amounts = {place: scene.stock.orders[place]["amount"] if place in scene.stock.orders else 0 for place in keys}
    assert {place: amount for place, (amount, _) in told.items() if place not in rejected} == {
        place: amount for place, amount in amounts.items() if place not in rejected
    }


def own_lines() -> list[str]:
    """The lines of the shop that are there for TaskBridge; a handler's own code is not."""
    found = []
    for path in sorted(SHOP.rglob("*.py")):
        if path.name == "tests.py":
            continue
        text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("from __future__")]
        whole = path.name == "0002_adopt_orders.py"
        found += [f"{path.name}: {line}" for line in lines if whole or re.search("taskbridge|bridge|@pipeline", line)]
    return found


def test_at_most_fifteen_lines_of_the_shop_are_taskbridge_s() -> None:
    found = own_lines()
    assert 8 <= len(found) <= 15, "\n".join(found)
