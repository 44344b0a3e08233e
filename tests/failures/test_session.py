"""`batch.session`: what a handler writes through SQLAlchemy's ORM commits with the cursor, or not at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import ForeignKey, inspect, select
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from taskbridge.declaring.batch import Batch
from taskbridge.errors import HandlerMistake
from tests.failures.drill import Drill


class Base(DeclarativeBase):
    pass


class Total(Base):
    __tablename__ = "totals"
    number: Mapped[str] = mapped_column(primary_key=True)
    of: Mapped[str | None] = mapped_column(ForeignKey("totals.number", deferrable=True, initially="DEFERRED"))


@pytest.fixture
def drill(drill: Drill) -> Drill:
    Base.metadata.create_all(drill.deployment.engine)
    return drill


def totals(drill: Drill) -> list[str]:
    with Session(drill.deployment.engine) as session:
        return sorted(session.scalars(select(Total.number)))


def add(batch: Batch) -> None:
    batch.session.add_all(Total(number=record.external_id) for record in batch)


def test_what_was_not_flushed_is_written_and_seen_by_the_batch_s_connection(drill: Drill) -> None:
    kept: list[Total] = []

    def handler(batch: Batch) -> None:
        session = batch.session
        assert session is batch.session
        kept.append(Total(number="first"))
        session.add(kept[0])
        session.flush()
        assert batch.connection.exec_driver_sql("SELECT number FROM totals").scalars().all() == ["first"]
        add(batch)

    drill.handle(handler)
    drill.save("acme", "1", "2")
    drill.go_on()
    assert totals(drill) == ["1", "2", "first"]
    assert drill.states() == {"handled": 2}
    assert inspect(kept[0]).detached
    assert kept[0].number == "first"


def test_nothing_of_a_batch_that_fails_is_written_also_what_was_committed(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        add(batch)
        batch.session.commit()
        if len(drill.calls) == 1:
            raise ValueError

    drill.handle(handler)
    drill.save("acme", "1")
    drill.go_on()
    # The first call's row would be in the way of the second's.
    assert totals(drill) == ["1"]
    assert [len(numbers) for _, numbers in drill.calls] == [1, 1]


@pytest.mark.parametrize("how", ["rollback", "savepoint"])
def test_a_part_that_is_rolled_back_leaves_the_rest(drill: Drill, how: str) -> None:
    def handler(batch: Batch) -> None:
        session = batch.session
        add(batch)
        session.commit()
        if how == "rollback":
            session.add(Total(number="1"))
            with pytest.raises(IntegrityError):
                session.flush()
            session.rollback()
        else:
            with suppress(IntegrityError), session.begin_nested():
                session.add(Total(number="1"))
                session.flush()
        session.add(Total(number="after"))

    drill.handle(handler)
    drill.save("acme", "1")
    drill.go_on()
    assert totals(drill) == ["1", "after"]
    assert drill.states() == {"handled": 1}


def test_to_close_it_drops_nothing(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        with batch.session as session:
            session.add(Total(number="in a block"))
        add(batch)

    drill.handle(handler)
    drill.save("acme", "1")
    drill.go_on()
    assert totals(drill) == ["1", "in a block"]


@pytest.mark.parametrize("kind", ["flush", "commit"])
def test_a_record_whose_row_breaks_a_constraint_goes_to_quarantine_alone(drill: Drill, kind: str) -> None:
    """Found when the session is flushed after the handler, or when the transaction commits."""

    def handler(batch: Batch) -> None:
        for record in batch:
            row = Total(number=record.external_id)
            if record.external_id == "bad":
                row = Total(number="taken") if kind == "flush" else Total(number="bad", of="nobody")
            batch.session.add(row)

    with Session(drill.deployment.engine) as session, session.begin():
        session.add(Total(number="taken"))
    drill.handle(handler)
    drill.save("acme", "1", "bad", "2")
    drill.go_on()
    assert totals(drill) == ["1", "2", "taken"]
    assert drill.states() == {"handled": 2, "quarantined": 1}


def test_an_error_that_was_caught_without_a_rollback_fails_the_batch(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            batch.session.add(Total(number="taken"))
            with pytest.raises(IntegrityError):
                batch.session.flush()

    with Session(drill.deployment.engine) as session, session.begin():
        session.add(Total(number="taken"))
    drill.handle(handler)
    drill.save("acme", "1")
    drill.go_on()
    assert len(drill.calls) == 2
    assert drill.states() == {"handled": 1}


def test_after_the_call_it_is_closed(drill: Drill) -> None:
    left: list[tuple[Batch, Session]] = []

    def handler(batch: Batch) -> None:
        add(batch)
        left.append((batch, batch.session))

    drill.handle(handler)
    drill.save("acme", "1")
    drill.go_on()
    ((batch, session),) = left
    with pytest.raises(HandlerMistake, match="the batch is over"):
        _ = batch.session
    with pytest.raises(InvalidRequestError, match="permanently closed"):
        session.scalars(select(Total))


def test_a_coroutine_writes_through_it_too(drill: Drill) -> None:
    async def handler(batch: Batch) -> None:
        add(batch)

    drill.handle(handler)
    drill.save("acme", "1", "2")
    drill.go_on()
    assert totals(drill) == ["1", "2"]
