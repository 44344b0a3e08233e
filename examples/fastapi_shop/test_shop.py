"""Tests of the shop, written as you would test your own: `pytest examples/fastapi_shop`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from warehouse import Warehouse, warehouse

from fastapi_shop.models import Base
from fastapi_shop.sync import app as celery
from fastapi_shop.web import app
from taskbridge.cli.main import cli
from taskbridge.settings import Settings
from taskbridge.testing import assert_notified, drain, notified

pytest_plugins = ["taskbridge.testing.plugin"]

BIKE = {"item": "bicycle", "amount": 2}


@pytest.fixture
def database(taskbridge_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    url = taskbridge_settings.postgres_url.replace("postgresql://", "postgresql+psycopg://")
    monkeypatch.setenv("SHOP_DATABASE_URL", url)
    monkeypatch.setitem(celery.conf, "broker_url", taskbridge_settings.redis_url)
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    adopted = CliRunner().invoke(cli, ["adopt", "orders", "--tenant", "customer", "--key", "id"])
    assert adopted.exit_code == 0, adopted.output
    yield engine
    engine.dispose()


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    with warehouse() as one:
        monkeypatch.setenv("WAREHOUSE_URL", one.url)
        yield one


@pytest.fixture
def client(database: Engine, stock: Warehouse) -> Iterator[TestClient]:  # noqa: ARG001 - it needs both
    with TestClient(app) as one:
        yield one


def place(client: TestClient, customer: str, **wish: object) -> str:
    answer = client.post(f"/customers/{quote(customer)}/orders", json={**BIKE, **wish})
    assert answer.status_code == 201
    return str(answer.json())


def sync(customer: str) -> int:
    return drain(customer, "orders", app=celery)


def test_an_order_reaches_the_warehouse(client: TestClient, stock: Warehouse) -> None:
    number = place(client, "acme")
    assert_notified("acme", "orders", app=celery)
    assert sync("acme") == 1
    assert stock.orders["acme", number] == {**BIKE, "id": int(number), "customer": "acme", "version": 1}


def test_a_change_and_the_end_of_an_order(client: TestClient, stock: Warehouse) -> None:
    kept, cancelled = place(client, "acme"), place(client, "acme")
    sync("acme")
    assert client.put(f"/orders/{kept}", json={"item": "bicycle", "amount": 5}).json() == 2
    client.delete(f"/orders/{cancelled}")
    sync("acme")
    assert {number: order["amount"] for (_, number), order in stock.orders.items()} == {kept: 5}


def test_what_is_rolled_back_notifies_nobody(client: TestClient) -> None:
    number = place(client, "acme")
    sync("acme")
    # Too large for its column: the database says so when the session writes the order, after `anotify`.
    too_many = {**BIKE, "amount": 2**31}
    with pytest.raises(DBAPIError, match="out of range"):
        client.post("/customers/acme/orders", json=too_many)
    with pytest.raises(DBAPIError, match="out of range"):
        client.put(f"/orders/{number}", json=too_many)
    assert notified("orders", app=celery) == {}


def test_what_was_refused_before_it_was_written_notifies_nobody(client: TestClient) -> None:
    assert client.put("/orders/7", json=BIKE).status_code == 404
    assert client.post("/customers/acme/orders", json={"item": "bicycle"}).status_code == 422
    assert notified("orders", app=celery) == {}


def test_an_order_that_the_warehouse_rejects_does_not_stop_the_others(
    client: TestClient, stock: Warehouse, database: Engine
) -> None:
    bad, good = place(client, "acme", amount=0), place(client, "acme")
    sync("acme")
    assert [number for _, number in stock.orders] == [good]
    with database.connect() as connection:
        states = connection.exec_driver_sql("SELECT external_id, state FROM taskbridge.record_states").all()
    assert dict(map(tuple, states)) == {bad: "quarantined", good: "handled"}


@pytest.mark.parametrize("customer", ["victim#", "acme?", "100%", "a b\u00e9"])
def test_a_customers_name_stays_one_part_of_the_path(client: TestClient, stock: Warehouse, customer: str) -> None:
    number = place(client, customer)
    sync(customer)
    assert list(stock.orders) == [(customer, number)]


@pytest.mark.parametrize("customer", [".", ".."])
def test_a_name_that_leads_to_another_path_is_rejected(
    client: TestClient, stock: Warehouse, database: Engine, customer: str
) -> None:
    answer = client.post(f"/customers/{customer.replace('.', '%2E')}/orders", json=BIKE)
    assert answer.status_code == 201
    sync(customer)
    assert stock.answers == {}
    with database.connect() as connection:
        assert connection.exec_driver_sql("SELECT state FROM taskbridge.record_states").scalars().all() == [
            "quarantined"
        ]


def test_a_warehouse_that_asks_to_wait_gets_each_order_once_and_in_order(client: TestClient, stock: Warehouse) -> None:
    numbers = [place(client, "acme") for _ in range(4)]
    stock.calls_per_second = 1
    sync("acme")
    assert stock.answers[429] > 0
    assert [one.number for one in stock.accepted] == numbers


def test_a_warehouse_that_fails_is_tried_again(client: TestClient, stock: Warehouse) -> None:
    number = place(client, "acme")
    stock.failing = 1.0
    with pytest.raises(Exception, match="500"):
        sync("acme")
    stock.failing = 0.0
    sync("acme")
    assert [one.number for one in stock.accepted] == [number]
