"""Pauses are kept once, and what is pending before a snapshot is what the view says was pending then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine

from taskbridge.store import Cursors, Pauses, Quarantine, Tenants, record_invoice, register_pipeline
from tests.quarantined import put_in_quarantine, states
from tests.store.sweeping import batch

TENANTS = ("acme", "bolt", "nobody")


@pytest.fixture
def pauses(engine: Engine) -> Pauses:
    return Pauses(engine)


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """A second session, whose transaction the test ends itself."""
    with engine.connect() as connection:
        yield connection


def left(engine: Engine, snapshot: str, pipeline: str = "invoices") -> dict[str, int]:
    return Tenants(engine, pipeline).pending_before(pipeline, TENANTS, snapshot)


def test_in_the_middle_of_a_sweep_what_it_passed_is_handled(engine: Engine, pauses: Pauses, other: Connection) -> None:
    cursors = Cursors(engine)
    register_pipeline(engine, "invoices", "invoices")
    record_invoice(engine, "acme", "late", {}, other)
    for number in "abc":
        record_invoice(engine, "acme", number, {})
    assert batch(cursors, limit=2) == ["a", "b"]
    other.commit()
    # `late` has a lower transaction id than where the sweep stands, and is not part of it.
    snapshot = pauses.snapshot()
    pending = [number for (_, number), state in states(engine).items() if state == "pending"]
    assert sorted(pending) == ["c", "late"]
    assert left(engine, snapshot) == {"acme": 2}
    assert batch(cursors, limit=2) == ["c"]
    assert left(engine, snapshot) == {"acme": 1}
    assert batch(cursors) == ["late"]
    assert left(engine, snapshot) == {}


def test_what_is_tried_again_counts_and_what_is_quarantined_does_not(engine: Engine, pauses: Pauses) -> None:
    for number in "12":
        record_invoice(engine, "acme", number, {})
    batch(Cursors(engine))
    put_in_quarantine(engine, "acme", "1", "2")
    snapshot = pauses.snapshot()
    assert left(engine, snapshot) == {}
    quarantine = Quarantine(engine)
    quarantine.retry("invoices", quarantine.find("invoices", external_ids=["1"])[0])
    assert left(engine, snapshot) == {"acme": 1}
    quarantine.discard("invoices", quarantine.find("invoices")[0])
    assert left(engine, snapshot) == {}
