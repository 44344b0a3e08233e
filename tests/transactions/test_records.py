"""Records in the transaction of whoever holds it: same checks, same errors, same result for each kind of connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.errors import ForeignCluster, InvalidConnection, InvalidInput, InvalidName, Unavailable
from taskbridge.producer.producer import Bridge
from taskbridge.store import unadopt
from tests.store.adopting import adopted, run
from tests.transactions.conftest import Events
from tests.transactions.kinds import KINDS, Held, opened

AWKWARD = {"text": 'quo"te \\ %s %% :name $1 {a,b} é\n', "none": None, "list": [1, {"a": "b"}], "n": 1.5}


def stored(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT tenant, key, document FROM taskbridge.records ORDER BY tenant, key")
        return [tuple(row) for row in rows]


def test_a_record_that_does_not_commit_with_its_transaction(held: Held, bridge: Bridge, engine: Engine) -> None:
    assert held.call(bridge, "record", "a", "1", AWKWARD, source="orders") is True
    assert stored(engine) == []
    held.rollback()
    assert stored(engine) == []
    held.call(bridge, "record", "a", "1", AWKWARD, source="orders")
    assert held.call(bridge, "record", "a", "1", AWKWARD, source="orders") is False, "nothing changed"
    held.commit()
    assert stored(engine) == [("a", "1", AWKWARD)]


def test_many_records_of_which_the_last_counts(held: Held, bridge: Bridge, engine: Engine) -> None:
    rows = [("a", "1", {"n": 1}), ("b", 'k"ey', AWKWARD), ("a", "2", {"n": 2}), ("a", "1", {"n": 3})]
    assert held.call(bridge, "record_many", rows, source="orders") == {"a": 2, "b": 1}
    assert held.call(bridge, "record_many", rows[1:], source="orders") == {}
    held.commit()
    assert stored(engine) == [("a", "1", {"n": 3}), ("a", "2", {"n": 2}), ("b", 'k"ey', AWKWARD)]


def test_an_invoice_and_a_message_in_one_transaction(held: Held, bridge: Bridge, engine: Engine) -> None:
    assert held.call(bridge, "record_invoice", "a", "INV-1", {"total": "7"})
    error = {"level": "ERROR", "service": "s", "text": AWKWARD["text"]}
    recorded = held.call(bridge, "record_event", "alerts", error, message_id="m-1")
    assert (recorded.new, recorded.tenant, recorded.delay, recorded.answer) == (True, "s", 60, None)
    assert not held.call(bridge, "record_event", "alerts", error, message_id="m-1").new
    unmatched = held.call(bridge, "record_event", "alerts", "no object", message_id="m-2")
    assert (unmatched.new, unmatched.tenant) == (True, None)
    held.commit()
    assert stored(engine) == [("", "m-2", "no object"), ("a", "INV-1", {"total": "7"}), ("s", "m-1", error)]


def test_what_is_refused_leaves_the_transaction_usable(held: Held, bridge: Bridge, engine: Engine) -> None:
    with pytest.raises(InvalidName, match="begins or ends with space"):
        held.call(bridge, "record", " a", "1", {}, source="orders")
    with pytest.raises(InvalidName, match="the source 'Or:ders' is not allowed"):
        held.call(bridge, "record", "a", "1", {}, source="Or:ders")
    with pytest.raises(InvalidInput, match="the document is not JSON"):
        held.call(bridge, "record", "a", "1", {"n": object()}, source="orders")
    with pytest.raises(InvalidInput, match="row 2 is no"):
        held.call(bridge, "record_many", [("a", "1", {}), ("a",)], source="orders")
    with pytest.raises(InvalidInput, match="pass 'after commit'"):
        held.call(bridge, "record", "a", "1", {}, source="orders", notify="later")
    held.call(bridge, "record", "a", "1", {}, source="orders")
    held.commit()
    assert stored(engine) == [("a", "1", {})]


@pytest.fixture
def parcels(engine: Engine) -> Iterator[None]:
    """A table that was adopted."""
    run(engine, "CREATE TABLE parcels (id int PRIMARY KEY, shop text NOT NULL)")
    adopted(engine, "parcels", "shop")
    yield
    unadopt(engine, "parcels")
    run(engine, "DROP TABLE parcels")


@pytest.mark.usefixtures("parcels")
def test_what_the_database_refuses_has_its_sentence(held: Held, bridge: Bridge, engine: Engine) -> None:
    def refused(error: type[Exception], match: str, source: str = "orders") -> None:
        with pytest.raises(error, match=match):
            held.call(bridge, "record", "a", "1", {}, source=source)
        held.rollback()

    refused(InvalidInput, "^the source parcels is a table that was adopted", source="parcels")
    moved = "UPDATE taskbridge.taskbridge_cluster SET system_identifier = system_identifier"
    run(engine, f"{moved} + 1")
    refused(ForeignCluster, "taskbridge migrate --rebase")
    run(engine, f"{moved} - 1")
    run(engine, "ALTER SCHEMA taskbridge RENAME TO elsewhere")
    refused(Unavailable, "run `taskbridge migrate`")
    run(engine, "ALTER SCHEMA elsewhere RENAME TO taskbridge")
    held.call(bridge, "record", "a", "1", {}, source="orders")
    run(
        engine,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    with pytest.raises(Unavailable, match="Postgres"):
        held.call(bridge, "record", "a", "2", {}, source="orders")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(("psycopg", "asyncpg"))])
def test_a_connection_that_tells_nobody_of_its_commit_is_refused_before_it_writes(
    kind: str, bridge: Bridge, engine: Engine, postgres_url: str, events: Events
) -> None:
    with opened(kind, postgres_url) as held:
        with pytest.raises(InvalidConnection, match=r"does not report its commit.*after your commit"):
            held.call(bridge, "record", "a", "1", {}, source="orders", notify="after commit")
        with pytest.raises(InvalidConnection, match="does not report its commit"):
            held.call(bridge, "notify", "a", "orders")
        held.commit()
    assert stored(engine) == []
    assert events() == {}


def test_a_connection_of_django_with_autocommit_off_is_refused_before_it_writes(
    bridge: Bridge, engine: Engine, postgres_url: str, events: Events
) -> None:
    with opened("Django", postgres_url) as held, closing(held.connection.copy()) as connection:
        connection.set_autocommit(False)
        with pytest.raises(InvalidConnection, match=r"has autocommit off.*notify after your commit"):
            bridge.record("a", "1", {}, source="orders", connection=connection, notify="after commit")
        with pytest.raises(InvalidConnection, match="has autocommit off"):
            bridge.notify("a", "orders", connection=connection)
        connection.commit()
        assert stored(engine) == []
        bridge.record("b", "1", {}, source="orders", connection=connection)
        connection.commit()
    assert stored(engine) == [("b", "1", {})]
    assert events() == {}


def test_any_other_object_is_told_what_is_taken(bridge: Bridge, engine: Engine) -> None:
    for other in (engine, object(), "postgresql://"):
        with pytest.raises(InvalidConnection) as caught:
            bridge.record("a", "1", {}, source="orders", connection=other)
        for name in ("Connection", "Session", "AsyncSession", "psycopg", "asyncpg", "django.db.connection"):
            assert name in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_of_the_other_colour_is_told_which_function_takes_it(
    kind: str, bridge: Bridge, postgres_url: str
) -> None:
    with opened(kind, postgres_url) as held:
        if "a" in kind[0].lower() or "async" in kind:
            with pytest.raises(InvalidConnection, match="is for coroutines: await `arecord`"):
                bridge.record("a", "1", {}, source="orders", connection=held.connection)
        else:
            with pytest.raises(InvalidConnection, match="is not for coroutines: call `record`"):
                asyncio.run(bridge.arecord("a", "1", {}, source="orders", connection=held.connection))
