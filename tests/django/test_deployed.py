"""`deployed` leaves the process, the app and Redis as they were, also where a test fails."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from sqlalchemy import Engine

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.django.testing import deployed
from taskbridge.process.looking import Looking
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record
from tests.deployment import Deployment
from tests.inline import AT_ONCE


class Broken(Exception):
    """What the body of a test raises."""


@pytest.fixture
def here(deployment: Deployment, project: None, monkeypatch: pytest.MonkeyPatch) -> Deployment:  # noqa: ARG001
    """A deployment whose app, in a block of `deployed`, has Django's database and the same Redis."""
    declared = Pipelines()
    declared.declare(Pipeline("orders", lambda _: None, AT_ONCE, batch_size=10))
    monkeypatch.setattr(Looking, "pipelines", declared)
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    return deployment


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
    # then Redis is empty, and environment, runtime and routes are what they were
    assert list(here.redis.scan_iter("*")) == []
    assert dict(os.environ) == environment
    assert runtime_of(app) is before
    assert app.conf.task_routes == routes
    # and the test's connections are closed
    assert sessions(here.engine) <= open_before
