"""The Django shop of `examples/`: its tests, its commands, and how much of it is TaskBridge's."""

from __future__ import annotations

import os
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from examples.warehouse import warehouse
from taskbridge.embedded import Servers
from taskbridge.testing.servers import fresh_database, open_directory
from tests.deployment import ROOT, Deployment, Worker
from tests.django.conftest import database
from tests.ending import ended
from tests.waiting import wait_until
from verification.shops import Scene, Shop, survive

pytestmark = pytest.mark.e2e

SHOP = ROOT / "examples" / "django_shop"


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
    done = ended([sys.executable, "manage.py", *arguments], environment, SHOP, seconds=100)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def shop(servers: Servers, redis_url: str) -> Iterator[dict[str, str]]:
    """The environment of a shop whose database is empty."""
    with fresh_database(servers, "template1") as url:
        yield variables(url, redis_url)


def test_the_shop_s_own_tests_pass_in_django_s_classes(taskbridge_servers: Servers) -> None:
    with shop(taskbridge_servers, taskbridge_servers.redis_url) as environment:
        said = manage(environment, "test", "--noinput")
    assert "Ran 10 tests" in said
    assert "OK" in said


OF_A_PROJECT = {
    "own.py": """
import os
from shop.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "early"]
CELERY_TASK_ALWAYS_EAGER = "EAGER" in os.environ
TASKBRIDGE_TAIL_LISTENS = True
""",
    "early/__init__.py": "",
    "early/migrations/__init__.py": "",
    "early/migrations/0001_initial.py": """
from django.core.management import call_command
from django.db import migrations

def use(*_):
    from shop.celery import bridge
    bridge.record("acme", "1", {}, source="early")
    call_command("taskbridge", "status")

class Migration(migrations.Migration):
    dependencies = [("orders", "0002_adopt_orders")]
    operations = [migrations.RunPython(use)]
""",
    "tried.py": """
from asgiref.sync import async_to_sync
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import SimpleTestCase, TransactionTestCase
from orders import services
from orders.models import Shipment
from orders.tests import WithWarehouse
from shop.celery import app, bridge
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import runtime_of

# Who looks at the configuration needs TaskBridge's settings, before there is a test's database.
app.conf.task_routes

@checks.register
def before_the_processes_are_forked(**_):
    runtime_of(app)
    return []

class Record(TransactionTestCase):
    def test_it_is_in_the_database_of_the_test(self):
        bridge.record("acme", type(self).__name__, {}, source="lines")
        with connection.cursor() as cursor:
            cursor.execute("SELECT source, key FROM taskbridge.records ORDER BY source")
            self.assertEqual(cursor.fetchall(), [("early", "1"), ("lines", type(self).__name__)])

class RecordToo(Record):
    pass

class WithoutADatabase(SimpleTestCase):
    def test_the_project_s_own_is_refused(self):
        with self.assertRaisesMessage(ConfigurationError, "Django has not created a database for this test"):
            bridge.record("acme", "1", {}, source="lines")
        with self.assertRaises(CommandError):
            call_command("taskbridge", "doctor")

    def test_no_event_goes_into_the_project_s_redis(self):
        for tell in (
            lambda: bridge.notify_event.delay("acme", "orders"),
            lambda: bridge.notify_many(["acme", "bolt"], "orders"),
        ):
            with self.assertRaisesMessage(ConfigurationError, "Django has not created a database for this test"):
                tell()
        # These write a line of the log in place of every error.
        for tell in (bridge.notify, async_to_sync(bridge.anotify)):
            with self.assertLogs("taskbridge", "ERROR"):
                tell("acme", "orders")

class Placed(WithWarehouse, TransactionTestCase):
    def test_what_runs_inline(self):
        services.place("acme", "bicycle", 2)
        self.assertEqual(Shipment.objects.count(), 1)

""",
}


@pytest.fixture
def without_scan(deployment: Deployment) -> Iterator[str]:
    """The URL of a role of Redis that may not look through all keys, which may be millions of the project's."""
    user = f"tests-{secrets.token_hex(4)}"
    deployment.redis.acl_setuser(
        user, enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=["+@all", "-scan", "-keys"]
    )
    url = make_url(deployment.settings.redis_url).set(username=user, password="secret")
    yield url.render_as_string(hide_password=False)
    deployment.redis.acl_deluser(user)


@pytest.mark.parametrize(
    ("what", "names_it"),
    [
        pytest.param(["tried.Placed"], False, id="inline"),
        pytest.param(["tried.Record", "tried.RecordToo", "--parallel", "2"], True, id="parallel"),
        pytest.param(["tried.WithoutADatabase"], True, id="none"),
    ],
)
def test_what_tests_do_reaches_their_own_database_alone_and_lets_django_drop_it(
    what: list[str],
    names_it: bool,
    deployment: Deployment,
    without_scan: str,
    taskbridge_servers: Servers,
    taskbridge_template: str,
    tmp_path: Path,
) -> None:
    """Also where the environment names the project's own, as `taskbridge env` prints it."""
    for name, text in OF_A_PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with fresh_database(taskbridge_servers, taskbridge_template) as url:
        environment = variables(url, without_scan)
        environment["PYTHONPATH"] += f":{tmp_path}"
        if names_it:
            environment["TASKBRIDGE_POSTGRES_URL"] = url
        if what == ["tried.Placed"]:
            environment["EAGER"] = "1"
        # An error of the teardown is its status too.
        said = manage(environment, "test", "--noinput", "--settings", "own", *what)
        assert "OK" in said
        assert ("Django has not created a database for this test" in said) is (what == ["tried.WithoutADatabase"])
        with psycopg.connect(url) as session:
            assert session.execute("SELECT count(*) FROM taskbridge.records").fetchone() == (0,)
        # Keys of idle tenants expire by themselves. The broker's have no prefix.
        left = [key for key in deployment.redis.scan_iter() if not 0 <= deployment.redis.ttl(key) <= 60]
        assert [key for key in left if not str(key).startswith("_kombu.")] == []


PLACE = """
from orders.models import Order, Shipment
from orders.services import place
for number in range(20):
    place(f"customer {number % 3}", "bicycle", 1)
Order.objects.bulk_create(Order(customer="nobody notified", item="bell", amount=1) for _ in range(5))
"""


def test_a_worker_of_the_shop_sends_each_order(
    deployment: Deployment, taskbridge_servers: Servers, tmp_path: Path
) -> None:
    def told() -> tuple[int, int]:
        """How many orders the handler has written down, and how often one at the most."""
        with psycopg.connect(url) as session:
            return session.execute("SELECT count(*), max(times_sent) FROM orders_shipment").fetchone() or (0, 0)

    with fresh_database(taskbridge_servers, "template1") as url, warehouse() as stock:
        environment = variables(url, deployment.settings.redis_url) | {"WAREHOUSE_URL": stock.url}
        manage(environment, "migrate")
        manage(environment, "shell", "-c", PLACE)
        worker = Worker(environment, tmp_path / "shop.log", ["-n", "shop@test", "-c", "2"], app="shop")
        try:
            worker.wait_until_ready()
            wait_until(lambda: told() == (25, 1), "each order is written down once")
            assert len(stock.orders) == 25
            assert "ERROR" not in worker.text()
        finally:
            worker.stop()


def test_a_worker_that_cannot_start_names_the_project_s_own_settings(
    taskbridge_servers: Servers, tmp_path: Path
) -> None:
    (tmp_path / "without.py").write_text('from shop.settings import *\nINSTALLED_APPS.remove("taskbridge.django")\n')
    broker = taskbridge_servers.redis_url
    nobody = {"PGHOST": "127.0.0.1", "PGPORT": "1"}
    with shop(taskbridge_servers, broker) as environment:
        for changed, expected in (
            (nobody, ["correct DATABASES['default']", "`manage.py taskbridge doctor`"]),
            ({"CELERY_BROKER_URL": "redis://127.0.0.1:1"}, ["correct CELERY_BROKER_URL"]),
            ({"DJANGO_SETTINGS_MODULE": "without", "PYTHONPATH": str(tmp_path)}, ["INSTALLED_APPS", "add it"]),
        ):
            command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo"]
            done = ended(command, environment | changed, SHOP, seconds=100)
            assert done.returncode == 1, done.stderr
            assert [one for one in expected if one not in done.stderr] == [], done.stderr


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
        (customer, str(number)): (amount, times_sent)
        for customer, number, amount, times_sent in scene.rows(
            'SELECT customer, "order", amount, times_sent FROM orders_shipment'
        )
    }
    keys = defaultdict[tuple[str, str], set[str]](set)
    for one in scene.stock.accepted:
        keys[one.customer, one.number].add(one.key)
    assert {place: times_sent for place, (_, times_sent) in told.items() if times_sent > len(keys[place])} == {}
    rejected = {
        (customer, str(number))
        for customer, number in scene.rows("SELECT customer, id FROM orders_order WHERE amount < 1")
    }
    amounts = {place: scene.stock.orders[place]["amount"] if place in scene.stock.orders else 0 for place in keys}
    assert {place: amount for place, (amount, _) in told.items() if place not in rejected} == {
        place: amount for place, amount in amounts.items() if place not in rejected
    }
