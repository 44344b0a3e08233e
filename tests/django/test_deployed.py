"""`deployed` leaves the process, the app and Redis as they were, also where a test fails."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from django.db import connections, transaction
from sqlalchemy import Engine

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.django.testing import deployed
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.store import adopt, adoption, record, register_pipeline
from tests.deployment import Deployment
from tests.inline import AT_ONCE
from tests.store.adopting import ORDERS, run
from tests.waiting import wait_until


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
    record(here.engine, "orders", "acme", "1", {})
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
        record(there.engine, "orders", "acme", "1", {})
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
        record(runtime_of(here.app).engine, "orders", "acme", "1", {})
        here.notify_event.delay("acme", pipeline="orders")
        assert one.notified("orders") == {"acme": 1}
        # In a transaction they would find nothing.
        with transaction.atomic(), pytest.raises(ConfigurationError, match=r"cannot be used in a transaction"):
            one.run_all()
        record(runtime_of(here.app).engine, "orders", "globex", "1", {})
        assert one.run_all() == 2
