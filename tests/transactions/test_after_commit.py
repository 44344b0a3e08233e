"""`notify="after commit"`: one event for each tenant when the transaction has committed, and none of what was not."""

from __future__ import annotations

import asyncio
import logging
import unittest
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection as django_connection
from django.db import connections, transaction
from django.test import TestCase, override_settings
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskbridge.errors import ConfigurationError, InvalidConnection, InvalidName, UnknownPipeline
from taskbridge.process import runtime as runtime_module
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from tests.transactions.conftest import Events
from tests.transactions.kinds import Held, opened
from tests.waiting import wait_until

AFTER: Any = {"source": "orders", "notify": "after commit"}


class Undone(Exception):
    """Rolls a savepoint back."""


def test_an_event_before_the_commit_or_two_for_a_tenant(telling: Held, bridge: Bridge, events: Events) -> None:
    # before the first statement of the transaction
    telling.call(bridge, "notify", "a", "orders")
    telling.call(bridge, "record", "a", "1", {}, **AFTER)
    telling.call(bridge, "record", "a", "2", {}, **AFTER)
    telling.call(bridge, "record_many", [("a", "3", {}), ("b", "1", {})], **AFTER)
    assert events() == {}
    telling.commit()
    assert events() == {"orders a": 1, "billing a": 1, "orders b": 1, "billing b": 1}
    # The next transaction has events of its own; what did not change has none.
    telling.call(bridge, "record", "a", "1", {}, **AFTER)
    telling.call(bridge, "record", "b", "1", {"new": True}, **AFTER)
    telling.commit()
    assert events() == {"orders a": 1, "billing a": 1, "orders b": 2, "billing b": 2}
    # And what was rolled back has none.
    telling.call(bridge, "record", "c", "1", {}, **AFTER)
    telling.call(bridge, "notify", "c", "orders")
    telling.rollback()
    telling.execute("SELECT 1")
    telling.commit()
    assert not {"orders c", "billing c"} & events().keys()


def test_an_event_at_the_release_of_a_savepoint_or_of_one_that_was_rolled_back(
    telling: Held, bridge: Bridge, events: Events
) -> None:
    telling.call(bridge, "notify", "before", "orders")
    with suppress(Undone), telling.savepoint():
        telling.call(bridge, "record", "undone", "1", {}, **AFTER)
        with telling.savepoint():
            telling.call(bridge, "record", "released in it", "1", {}, **AFTER)
        telling.call(bridge, "record", "before", "1", {}, **AFTER)
        raise Undone
    with telling.savepoint():
        telling.call(bridge, "notify", "kept", "orders")
        with telling.savepoint():
            telling.call(bridge, "notify", "kept", "orders")
    assert events() == {}
    telling.commit()
    assert events() == {"orders before": 1, "orders kept": 1}
    # A savepoint that is older than the first event takes them all with it.
    with suppress(Undone), telling.savepoint():
        telling.call(bridge, "record", "undone", "2", {}, **AFTER)
        raise Undone
    telling.call(bridge, "notify", "kept too", "orders")
    telling.commit()
    assert events() == {"orders before": 1, "orders kept": 1, "orders kept too": 1}


def test_a_message_has_its_event_with_its_delay(telling: Held, bridge: Bridge, events: Events) -> None:
    for name in ("m-1", "m-2"):
        error = {"level": "ERROR", "service": "s"}
        recorded = telling.call(bridge, "record_event", "alerts", error, message_id=name, notify="after commit")
        assert recorded.answer is None
    telling.call(bridge, "record_event", "alerts", {"level": "INFO"}, notify="after commit")
    assert events() == {}
    telling.commit()
    assert events() == {"alerts s": 1}


def test_a_commit_that_fails_since_redis_is_away(
    telling: Held, bridge: Bridge, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    # given a gate that nobody answers for
    runtime = runtime_of(bridge.app)
    runtime.settings = replace(runtime.settings, redis_url="redis://127.0.0.1:1/0")
    with caplog.at_level(logging.WARNING, "taskbridge"):
        for key in ("1", "2"):
            telling.call(bridge, "record", "a", key, {}, **AFTER)
            telling.commit()
            wait_until(lambda: not runtime.unsent, "the event was tried")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM taskbridge.records")).scalar() == 2
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("taskbridge")]
    assert len(lines) == 2
    assert all("tenant 'a'" in line and "Redis cannot be reached" in line for line in lines), lines


def test_a_commit_succeeds_although_too_many_events_wait(
    postgres_url: str, bridge: Bridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def commit() -> None:
        own = create_async_engine(make_url(postgres_url).set(drivername="postgresql+asyncpg"))
        async with AsyncSession(own) as session:
            await bridge.arecord("a", "1", {}, connection=session, **AFTER)
            await session.commit()
        await own.dispose()

    monkeypatch.setattr(runtime_module, "MOST_WAITING", 0)
    asyncio.run(commit())
    assert "no event for tenant 'a'" in caplog.text
    assert "too many events are waiting to be sent" in caplog.text


def test_a_record_without_a_connection_has_its_event_at_once(bridge: Bridge, events: Events) -> None:
    assert bridge.record("a", "1", {}, **AFTER)
    assert asyncio.run(bridge.arecord("b", "1", {}, **AFTER))
    assert asyncio.run(bridge.arecord_many([("c", "1", {})], **AFTER)) == {"c": 1}
    error = {"level": "ERROR", "service": "s"}
    assert bridge.record_event("alerts", error, notify="after commit").answer is None
    assert asyncio.run(bridge.arecord_event("alerts", {"level": "ERROR", "service": "t"})).answer is not None
    assert asyncio.run(bridge.anotify("d", "orders")) is not None
    assert bridge.notify("e", "orders") is not None
    found = {name: count for name, count in events().items() if not name.startswith("billing")}
    assert found == {f"orders {tenant}": 1 for tenant in "abcde"} | {"alerts s": 1, "alerts t": 1}


@pytest.mark.parametrize("kind", ["Connection", "AsyncConnection, asyncpg", "AsyncConnection, psycopg"])
def test_a_connection_without_a_transaction_of_its_own_has_its_event_at_once(
    kind: str, bridge: Bridge, events: Events, postgres_url: str
) -> None:
    with opened(kind, postgres_url) as held:
        autocommit = held.connection.execution_options(isolation_level="AUTOCOMMIT")
        held.run(autocommit)
        held.call(bridge, "record", "a", "1", {}, **AFTER)
        assert events() == {"orders a": 1, "billing a": 1}


def test_a_session_inside_a_transaction_that_is_not_its_own(engine: Engine, bridge: Bridge, events: Events) -> None:
    # as tests of an application do: the session's commit is none
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            bridge.record("a", "1", {}, connection=session, **AFTER)
            session.commit()
        assert events() == {}
        outer.rollback()
    assert events() == {}
    with engine.begin() as connection, Session(connection) as session:
        bridge.record("a", "1", {}, connection=session, **AFTER)
        session.commit()
        assert events() == {}
    assert events() == {"orders a": 1, "billing a": 1}


def test_blocks_that_commit_by_themselves(postgres_url: str, engine: Engine, bridge: Bridge, events: Events) -> None:
    with engine.begin() as connection:
        bridge.record("a", "1", {}, connection=connection, **AFTER)
    with Session(engine) as session, session.begin():
        bridge.record("b", "1", {}, connection=session, **AFTER)
    with engine.connect() as connection:
        two_phases = connection.begin_twophase()
        bridge.notify("c", "orders", connection=connection)
        two_phases.rollback()
    with engine.connect() as connection:
        two_phases = connection.begin_twophase()
        bridge.record("f", "1", {}, connection=connection, **AFTER)
        two_phases.prepare()
        assert "orders f" not in events()
        two_phases.commit()

    async def in_a_session() -> None:
        own = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(own) as session, session.begin():
            await bridge.arecord("d", "1", {}, connection=session, **AFTER)
            await session.run_sync(lambda inner: bridge.record("e", "1", {}, connection=inner, **AFTER))
        await own.dispose()

    asyncio.run(in_a_session())
    assert sorted(name for name in events() if name.startswith("orders")) == [f"orders {tenant}" for tenant in "abdef"]


@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")
@pytest.mark.parametrize("ended", ["transaction", "savepoint"])
def test_savepoints_that_are_open_end_with_what_is_around_them(
    ended: str, engine: Engine, bridge: Bridge, events: Events
) -> None:
    with engine.connect() as connection:
        savepoint = connection.begin_nested()
        bridge.record("a", "1", {}, connection=connection, **AFTER)
        connection.begin_nested()
        connection.begin_nested()
        bridge.record("a", "2", {}, connection=connection, **AFTER)
        bridge.record("b", "1", {}, connection=connection, **AFTER)
        if ended == "savepoint":
            savepoint.commit()
            assert events() == {}
        connection.commit()
        assert {name: count for name, count in events().items() if "orders" in name} == {"orders a": 1, "orders b": 1}
        connection.begin_nested()
        bridge.record("c", "1", {}, connection=connection, **AFTER)
        connection.rollback()
        bridge.record("d", "1", {}, connection=connection, **AFTER)
        connection.commit()
    assert sorted(name for name in events() if "orders" in name) == ["orders a", "orders b", "orders d"]


def test_a_commit_that_postgres_refuses_has_no_event(engine: Engine, bridge: Bridge, events: Events) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO late VALUES (1), (1)")
        bridge.record("a", "1", {}, connection=connection, **AFTER)
        with pytest.raises(IntegrityError):
            connection.commit()
    assert events() == {}


def test_what_can_never_be_notified_is_refused_before_it_is_written(bridge: Bridge, engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(UnknownPipeline, match="no loaded pipeline reads the source 'others'"):
            bridge.record("a", "1", {}, source="others", connection=connection, notify="after commit")
        with pytest.raises(UnknownPipeline, match="no pipeline is called 'others'"):
            bridge.notify("a", "others", connection=connection)
        with pytest.raises(InvalidName, match="the tenant is empty"):
            bridge.notify("", "orders", connection=connection)
        assert not connection.in_transaction()


def test_delay_on_commit_is_as_in_celerys_own_task_for_django(
    bridge: Bridge, events: Events, postgres_url: str
) -> None:
    with opened("Django", postgres_url) as held:
        bridge.notify_event.delay_on_commit("a", "orders")
        bridge.notify_event.delay_on_commit("a", pipeline="orders")
        bridge.notify_event.delay_on_commit("b")
        assert events() == {}
        held.commit()
        assert events() == {"orders a": 1, "invoices b": 1}
        bridge.notify_event.delay_on_commit("c")
        held.rollback()
        assert events() == {"orders a": 1, "invoices b": 1}


def test_each_capture_of_hooks_in_a_test_of_django_has_the_events_that_came_in_it(
    bridge: Bridge, events: Events, postgres_url: str
) -> None:
    class Captures(TestCase):
        def record(self, tenant: str, number: str) -> None:
            bridge.record(tenant, number, {}, connection=django_connection, **AFTER)

        def setUp(self) -> None:
            self.record("a", "0")

        def test_captures(self) -> None:
            for number, tenant in enumerate("aab", 1):
                with self.captureOnCommitCallbacks(execute=True) as hooks:
                    self.record(tenant, str(number))
                assert len(hooks) == 1
            assert {name: count for name, count in events().items() if "orders" in name} == {
                "orders a": 2,
                "orders b": 1,
            }
            with self.captureOnCommitCallbacks(execute=True):
                self.record("a", "4")
                with transaction.atomic():
                    self.record("a", "5")
                self.record("a", "6")
            assert events()["orders a"] == 3

    result = unittest.TestResult()
    with opened("Django", postgres_url):
        unittest.defaultTestLoader.loadTestsFromTestCase(Captures).run(result)
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])


def test_delay_on_commit_takes_the_alias_that_is_configured_for_taskbridge(
    bridge: Bridge, events: Events, postgres_url: str
) -> None:
    with opened("Django", postgres_url) as held:
        connections["shop"] = held.connection
        try:
            with override_settings(TASKBRIDGE_DATABASE="shop"):
                connections["default"] = connections["lite"]
                bridge.notify_event.delay_on_commit("a", "orders")
            for unset in (override_settings(), override_settings(TASKBRIDGE_DATABASE=None)):
                with unset, pytest.raises(InvalidConnection, match=r"'default' is SQLite.*TASKBRIDGE_DATABASE"):
                    bridge.notify_event.delay_on_commit("b", "orders")
            assert events() == {}
        finally:
            connections["default"] = held.connection
            del connections["shop"]
        held.commit()
    assert events() == {"orders a": 1}


def test_delay_on_commit_without_django_says_so(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "django.db", None)
    with pytest.raises(ConfigurationError, match="Django, which is not installed"):
        bridge.notify_event.delay_on_commit("a")
