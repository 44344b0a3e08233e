"""`deliver` treats a batch's ORM session as a worker does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import connection, transaction
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import taskbridge
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.django.testing import deliver
from taskbridge.errors import HandlerMistake
from taskbridge.process.runtime import Runtime
from tests.deployment import Deployment
from tests.inline import AT_ONCE
from tests.store.adopting import ORDERS, adopted, run


class Base(DeclarativeBase):
    pass


class Total(Base):
    __tablename__ = "totals"
    number: Mapped[str] = mapped_column(primary_key=True)


class OfTheShop(DeclarativeBase):
    pass


class Placed(OfTheShop):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


@pytest.fixture(autouse=True)
def tables(deployment: Deployment, project: None) -> None:  # noqa: ARG001 - Django's connection is to this database
    Base.metadata.create_all(deployment.engine)


def handle(monkeypatch: pytest.MonkeyPatch, handler: Handler, batch_size: int = 10) -> None:
    declared = Pipelines()
    declared.declare(Pipeline("orders", handler, AT_ONCE, batch_size=batch_size))
    monkeypatch.setattr(Runtime, "pipelines", declared)


def save(*keys: str) -> None:
    for key in keys:
        taskbridge.record("acme", key, {}, source="orders", connection=connection)


def totals() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM totals ORDER BY number")
        return [number for (number,) in cursor.fetchall()]


def test_what_cannot_be_written_is_an_error_and_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(batch: Batch) -> None:
        batch.session.add_all([Total(number="1"), Total(number="1")])

    handle(monkeypatch, handler)
    with transaction.atomic():
        save("1")
        with pytest.raises(IntegrityError):
            deliver("orders")
        assert totals() == []
        handle(monkeypatch, lambda batch: batch.session.add(Total(number="2")))
        assert len(deliver("orders")) == 1
        assert totals() == ["2"], "what a handler holds in its session is written"


def test_what_a_session_holds_is_written_while_its_tenant_s_rows_make_no_records(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(deployment.engine, ORDERS)
    adopted(deployment.engine)

    def handler(batch: Batch) -> None:
        batch.session.get_one(Placed, 1).note = "sent"

    handle(monkeypatch, handler)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
        assert len(deliver("orders")) == 1
        assert deliver("orders") == []


def test_an_error_that_was_caught_in_a_block_without_a_savepoint_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(_: Batch) -> None:
        with suppress(ValueError), transaction.atomic(savepoint=False):
            raise ValueError

    handle(monkeypatch, handler)
    with transaction.atomic():
        save("1")
        with pytest.raises(HandlerMistake, match="nothing can be committed"):
            deliver("orders")
