"""Quarantine shows what goes to quarantine now, and lets it be tried again or given up without losing its trace."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.declaring.criteria import Match
from taskbridge.store import Quarantine, QuarantinedRecord, Records, record_invoice, register_pipeline
from tests.quarantined import put_in_quarantine, states
from tests.store.adopting import run


@pytest.fixture
def quarantine(engine: Engine) -> Quarantine:
    """Three records of acme and one of bolt, which has the number of one of acme's."""
    register_pipeline(engine, "invoices", "invoices")
    for tenant, number in (("acme", "1"), ("acme", "2"), ("acme", "3"), ("bolt", "1"), ("bolt", "fine")):
        record_invoice(engine, tenant, number, {"version": 1})
    put_in_quarantine(engine, "acme", "1", reason="ValueError: no customer 17", attempts=5)
    put_in_quarantine(engine, "acme", "2", reason="no price", cause="rejected")
    put_in_quarantine(engine, "acme", "3", reason="no price")
    put_in_quarantine(engine, "bolt", "1", reason="100% of _ is \\ no price")
    return Quarantine(engine)


def ids(quarantine: Quarantine, **choice: Any) -> list[tuple[str, str]]:
    return [(one.tenant, one.external_id) for one in find(quarantine, **choice)]


def find(quarantine: Quarantine, pipeline: str = "invoices", **choice: Any) -> list[QuarantinedRecord]:
    records, count = quarantine.find(pipeline, **choice)
    assert count == len(records)
    return records


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["acme 1", "acme 2", "acme 3", "bolt 1"]),
    ({"tenant": "acme"}, ["acme 1", "acme 2", "acme 3"]),
    ({"tenant": "acm"}, []),
    ({"external_ids": ["1", "3", "4", "fine"]}, ["acme 1", "acme 3", "bolt 1"]),
    ({"external_ids": ["1"], "tenant": "bolt"}, ["bolt 1"]),
    ({"reason": "no price"}, ["acme 2", "acme 3", "bolt 1"]),
    ({"reason": "% of _ is \\"}, ["bolt 1"]),
    ({"reason": "_"}, ["bolt 1"]),
    ({"reason": "NO PRICE"}, []),
    ({"reason": "no price", "external_ids": ["2"], "tenant": "acme"}, ["acme 2"]),
    ({"pipeline": "mirror"}, []),
]


def test_each_filter_narrows(quarantine: Quarantine) -> None:
    for choice, expected in FILTERS:
        assert [" ".join(one) for one in ids(quarantine, **choice)] == expected, choice


def test_a_record_that_changed_or_is_gone_is_not_in_quarantine(engine: Engine, quarantine: Quarantine) -> None:
    before = find(quarantine, tenant="acme")
    record_invoice(engine, "acme", "1", {"version": 2})
    run(engine, "DELETE FROM taskbridge.records WHERE tenant = 'acme' AND key = '2'")
    assert ids(quarantine, tenant="acme") == [("acme", "3")]
    assert states(engine)["acme", "1"] == "pending"
    # A decision about the old revision is none about the new one.
    quarantine.discard("invoices", before)
    assert states(engine) == {
        ("acme", "1"): "pending",
        ("acme", "3"): "discarded",
        ("bolt", "1"): "quarantined",
        ("bolt", "fine"): "pending",
    }


def test_a_discarded_record_leaves_a_trace_and_can_come_back(engine: Engine, quarantine: Quarantine) -> None:
    quarantine.retry("invoices", find(quarantine, external_ids=["2"]))
    (chosen,) = find(quarantine, external_ids=["2"])
    assert quarantine.discard("invoices", [chosen]) == [("acme", "2")]
    assert states(engine)["acme", "2"] == "discarded"
    assert ("acme", "2") not in ids(quarantine)
    (kept,) = find(quarantine, external_ids=["2"], discarded=True)
    assert (kept.state, kept.reason, kept.retry_at) == ("discarded", "no price", None)
    # Discarding again keeps the time of the first.
    quarantine.discard("invoices", [kept])
    assert find(quarantine, external_ids=["2"], discarded=True) == [kept]
    quarantine.retry("invoices", [kept])
    assert states(engine)["acme", "2"] == "pending"
    assert find(quarantine, external_ids=["2"])[0].discarded_at is None


def test_pipelines_with_criteria_have_a_quarantine_of_their_own_rows(engine: Engine, quarantine: Quarantine) -> None:
    for pipeline in ("alerts", "other"):
        register_pipeline(engine, pipeline, pipeline)
        Records(engine, pipeline).write(f"{pipeline}-1", "{}", Match("acme", 1000, "c"))
        put_in_quarantine(engine, "acme", f"{pipeline}-1", pipeline=pipeline)
    of_alerts = Quarantine(engine, "alerts")
    assert ids(of_alerts, pipeline="alerts") == [("acme", "alerts-1")]
    # The id of a message is unique in its pipeline only.
    put_in_quarantine(engine, "acme", "other-1", pipeline="alerts")
    assert ids(of_alerts, pipeline="alerts") == [("acme", "alerts-1")]
    of_alerts.discard("alerts", find(of_alerts, pipeline="alerts"))
    assert states(engine, "alerts") == {("acme", "alerts-1"): "discarded"}
    assert states(engine, "other") == {("acme", "other-1"): "quarantined"}
    assert len(ids(quarantine)) == 4
