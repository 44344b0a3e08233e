"""`deliver` and `deployed`: a handler is given the same as by real runs, and nothing is left of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import override_settings
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import taskbridge
from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.django.testing import deliver, deployed
from taskbridge.errors import ConfigurationError, HandlerMistake
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.store import adopt, adoption, register_pipeline
from taskbridge.store import record as save
from tests.deployment import Deployment
from tests.django.shop import adopted_again
from tests.inline import AT_ONCE
from tests.store.adopting import ORDERS, adopted, run
from tests.waiting import wait_until

Seen = list[tuple[str, list[tuple[str, bool]]]]


class Shop:
    """An adopted table in one of the two kinds of tests; `seen` has the batches of `orders`, by tenant and key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handle_all: Callable[[], object]) -> None:
        self._monkeypatch = monkeypatch
        self._handle_all = handle_all
        self.seen: Seen = []

    def handle(self, handler: Handler, *others: str, batch_size: int = 10, source: str = "orders") -> None:
        """Declare `orders` with a handler, and other pipelines of its source."""
        declared = Pipelines()
        declared.declare(Pipeline("orders", handler, AT_ONCE, batch_size=batch_size, source=source))
        for name in others:
            declared.declare(Pipeline(name, lambda _: None, AT_ONCE, batch_size, source="orders"))
        self._monkeypatch.setattr(Runtime, "pipelines", declared)

    def note(self, batch: Batch) -> None:
        """What a handler calls."""
        self.seen.append((batch.tenant, [(record.external_id, record.deleted) for record in batch]))

    def execute(self, statement: str) -> None:
        """Change the table as the project does."""
        with connection.cursor() as cursor:
            cursor.execute(statement)

    def batches(self) -> Seen:
        """Let all be handled, and return the new batches."""
        self.seen.clear()
        self._handle_all()
        return list(self.seen)


@contextmanager
def in_a_test_case(_: Deployment) -> Iterator[Callable[[], object]]:
    def handle_all() -> None:
        while deliver("orders"):
            pass

    with transaction.atomic():
        yield handle_all


@contextmanager
def in_a_transaction_test_case(here: Deployment) -> Iterator[Callable[[], object]]:
    with deployed(here.app) as one:
        yield one.run_all


KINDS = [in_a_test_case, in_a_transaction_test_case]


@pytest.fixture(params=KINDS)
def shop(
    request: pytest.FixtureRequest,
    deployment: Deployment,
    project: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    run(deployment.engine, ORDERS)
    adopted(deployment.engine)
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    with request.param(deployment) as handle_all:
        yield Shop(monkeypatch, handle_all)


PLACE = "INSERT INTO orders VALUES (1, 'acme', 1, 'a'), (2, 'acme', 2, 'b'), (3, 'bolt', 3, 'c')"
PLACED: Seen = [("acme", [("1", False), ("2", False)]), ("bolt", [("3", False)])]


def test_each_change_is_handled_once_and_a_row_that_is_gone_is_deleted(shop: Shop) -> None:
    documents: list[Any] = []

    def handler(batch: Batch) -> None:
        shop.note(batch)
        documents.extend(dict(record.document) for record in batch)
        for record in batch:
            if record.external_id == "3":
                batch.reject(record, "no")

    shop.handle(handler)
    shop.execute(PLACE)
    assert sorted(shop.batches()) == PLACED
    assert shop.batches() == [], "nor does what was rejected come again"
    shop.execute("UPDATE orders SET total = 9 WHERE id = 2")
    assert shop.batches() == [("acme", [("2", False)])]
    documents.clear()
    shop.execute("DELETE FROM orders WHERE id = 1")
    assert shop.batches() == [("acme", [("1", True)])]
    assert documents == [{}]


@pytest.mark.parametrize("others", [(), ("audit",)])
def test_what_a_handler_writes_back_is_kept_and_wakes_it_only_if_there_is_another_reader(
    shop: Shop, others: tuple[str, ...]
) -> None:
    def handler(batch: Batch) -> None:
        shop.note(batch)
        shop.execute("UPDATE orders SET note = 'sent' WHERE note <> 'sent'")

    shop.handle(handler, *others)
    shop.execute("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    assert shop.batches() + shop.batches() == [("acme", [("1", False)])] * (1 + len(others))
    assert shop.batches() == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT note FROM orders")
        assert cursor.fetchall() == [("sent",)]


def written() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM shop_customer ORDER BY name")
        return [name for (name,) in cursor.fetchall()]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_that_asks_to_wait_keeps_what_it_marked_and_the_rest_comes_again(
    shop: Shop, asynchronous: bool
) -> None:
    asked: list[str] = []

    def handler(batch: Batch) -> RetryAfter | None:
        shop.note(batch)
        for record in batch:
            if record.external_id in {"2", "3", "4"} and record.external_id not in asked:
                asked.append(record.external_id)
                if record.external_id == "4":
                    batch.connection.exec_driver_sql("INSERT INTO shop_customer (name) VALUES ('lost')")
                return RetryAfter(5)
            insert = "INSERT INTO shop_customer (name) VALUES (%s) ON CONFLICT DO NOTHING"
            batch.connection.exec_driver_sql(insert, (record.external_id,))
            batch.handled(record)
        return None

    async def coroutine(batch: Batch) -> RetryAfter | None:
        return handler(batch)

    shop.handle(coroutine if asynchronous else handler, batch_size=3)
    shop.execute("INSERT INTO orders SELECT n, 'acme', n, 'a' FROM generate_series(1, 3) n")
    shop.execute("INSERT INTO orders VALUES (4, 'bolt', 4, 'd')")
    seen = shop.batches()
    of = {tenant: [[key for key, _ in keys] for name, keys in seen if name == tenant] for tenant in ("acme", "bolt")}
    assert of == {"acme": [["1", "2", "3"], ["2", "3"], ["3"]], "bolt": [["4"], ["4"]]}
    assert written() == ["1", "2", "3", "4"]
    assert shop.batches() == []
    shop.execute("UPDATE orders SET total = 9 WHERE id = 2")
    assert shop.batches() == [("acme", [("2", False)])]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("module", [None, adopted_again.__name__])
@pytest.mark.parametrize("kind", KINDS)
def test_who_tests_without_the_migration_that_adopts_is_told(
    kind: Any, module: str | None, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    monkeypatch.setitem(sys.modules, "tests.django.shop.migrations", adopted_again)
    with override_settings(MIGRATION_MODULES={"shop": module}), kind(deployment) as handle_all:
        here = Shop(monkeypatch, handle_all)
        here.handle(here.note, source="lines")
        with pytest.raises(
            ConfigurationError, match=r"adopted as lines .*shop\.first_lines.*: run migrations in tests"
        ):
            here.batches()


class Base(DeclarativeBase):
    pass


class Total(Base):
    __tablename__ = "totals"
    number: Mapped[str] = mapped_column(primary_key=True)


@pytest.mark.usefixtures("project")
def test_deliver_writes_what_a_handler_holds_in_its_session_or_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def caught(_: Batch) -> None:
        with suppress(ValueError), transaction.atomic(savepoint=False):
            raise ValueError

    Base.metadata.create_all(deployment.engine)
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    shop = Shop(monkeypatch, lambda: deliver("orders"))
    with transaction.atomic():
        taskbridge.record("acme", "1", {}, source="orders", connection=connection)
        for handler, error in (
            (lambda batch: batch.session.add_all([Total(number="1"), Total(number="1")]), IntegrityError),
            (caught, HandlerMistake),
        ):
            shop.handle(handler)
            with pytest.raises(error):
                shop.batches()
        shop.handle(lambda batch: batch.session.add(Total(number="2")))
        assert len(deliver("orders")) == 1
        with connection.cursor() as cursor:
            cursor.execute("SELECT number FROM totals")
            assert cursor.fetchall() == [("2",)]


class Broken(Exception):
    """What the body of a test raises."""


@pytest.fixture
def here(deployment: Deployment, project: None, monkeypatch: pytest.MonkeyPatch) -> Deployment:  # noqa: ARG001
    """A deployment whose app, in a block of `deployed`, has Django's database and the same Redis."""
    declared = Pipelines()
    declared.declare(Pipeline("orders", lambda _: None, AT_ONCE, batch_size=10))
    monkeypatch.setattr(Runtime, "pipelines", declared)
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    return deployment


def test_a_database_that_is_none_of_a_test_is_not_emptied(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    save(here.engine, "orders", "acme", "1", {})
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "shop")
    with pytest.raises(ConfigurationError, match=r"database shop of the alias 'default' is not a test database"):
        deployed(here.app).__enter__()
    with here.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar_one() == 1


def test_all_tables_are_emptied_but_those_that_say_what_the_database_is(here: Deployment) -> None:
    run(here.engine, ORDERS)
    adopt(here.engine, adoption(here.engine, "orders", "customer", ["id"]))
    register_pipeline(here.engine, "orders", "orders")
    run(
        here.engine,
        "INSERT INTO orders VALUES (1, 'acme', 1, 'a')",
        "INSERT INTO taskbridge.received (source, delivery) VALUES ('orders', '1')",
    )
    with deployed(here.app), here.engine.connect() as connection:
        names = connection.exec_driver_sql("SELECT tablename FROM pg_tables WHERE schemaname = 'taskbridge'").scalars()
        count = "SELECT count(*) FROM taskbridge."
        rows = {name: connection.exec_driver_sql(count + name).scalar_one() for name in names.all()}
    assert {name for name, number in rows.items() if number} == {"adopted", "taskbridge_cluster", "taskbridge_schema"}
    assert {"records", "pipelines", "received", "quarantine"} <= set(rows)


def sessions(engine: Engine) -> set[int]:
    with engine.connect() as connection:
        statement = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return set(connection.exec_driver_sql(statement).scalars())


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_of_a_test_whether_or_not_it_fails(fails: bool, here: Deployment) -> None:
    # given an app with a runtime of its own
    app, environment = here.app, dict(os.environ)
    before, routes, open_before = runtime_of(app), app.conf.task_routes, sessions(here.engine)
    # when a test notifies, runs one of two tenants, and then fails
    with suppress(Broken), deployed(app) as one:
        there = runtime_of(app)
        assert there is not before
        assert os.environ["TASKBRIDGE_KEY_PREFIX"] != environment.get("TASKBRIDGE_KEY_PREFIX")
        save(there.engine, "orders", "acme", "1", {})
        assert one.run_all() == 1
        here.notify_event.delay("globex", pipeline="orders")
        assert one.notified("orders") == {"globex": 1}
        assert list(here.redis.scan_iter("*"))
        if fails:
            raise Broken
    # then Redis has nothing that does not expire within a minute, and the app is what it was
    assert [key for key in here.redis.scan_iter() if not 0 <= here.redis.ttl(key) <= 60] == []
    assert dict(os.environ) == environment
    assert runtime_of(app) is before
    assert app.conf.task_routes == routes
    # and the test's connections are closed
    # A process of Postgres ends a moment after its client has closed.
    wait_until(lambda: sessions(here.engine) <= open_before, "no session is left")


def test_runs_wait_for_the_test_also_inline_and_are_refused_in_a_transaction(here: Deployment) -> None:
    here.app.conf.task_always_eager = True
    with deployed(here.app) as one:
        save(runtime_of(here.app).engine, "orders", "acme", "1", {})
        here.notify_event.delay("acme", pipeline="orders")
        assert one.notified("orders") == {"acme": 1}
        # In a transaction they would find nothing.
        with transaction.atomic(), pytest.raises(ConfigurationError, match=r"cannot be used in a transaction"):
            one.run_all()
        save(runtime_of(here.app).engine, "orders", "globex", "1", {})
        assert one.run_all() == 2
