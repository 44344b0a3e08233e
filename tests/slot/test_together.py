"""Runs that begin together share what they ask for, and none of them costs the others anything."""

from __future__ import annotations

import time

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.errors import RunFailed
from taskbridge.gate import State
from taskbridge.process.pace import Pace
from taskbridge.store import record_invoice
from taskbridge.worker import group, slot
from tests.inline import Inline
from tests.slot.doing import (
    TENANTS,
    handled,
    note_calls,
    nothing,
    quick,
    run_together,
    save,
    save_orders,
    taken,
    two_pipelines,
    work,
)


def test_the_handlers_of_runs_that_began_together_are_advanced_in_one_commit(inline: Inline) -> None:
    inline.handle(nothing)
    save(inline)
    run_together(inline)
    ids = inline.deployment.rows("SELECT DISTINCT xmin FROM taskbridge.sync_cursors")
    assert len(ids) == 1
    assert handled(inline) == dict.fromkeys(TENANTS, 1)


def test_what_is_done_is_advanced_before_the_next_handler_is_called_after_a_slow_one(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "ADVANCED_WITHIN", 0.05)
    seen: list[dict[str, int]] = []

    def handle(batch: Batch) -> None:
        seen.append(handled(inline))
        time.sleep(0.1 if batch.tenant == "b" else 0.0)

    inline.handle(handle)
    save(inline)
    run_together(inline)
    assert seen[1].get("a", 0) == 0, "a and b are advanced together"
    assert {tenant: seen[2][tenant] for tenant in "ab"} == {"a": 1, "b": 1}


def test_one_that_fails_stops_none_and_each_error_is_told_with_its_tenant(
    inline: Inline, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: Batch) -> None:
        if batch.tenant in "ac":
            raise ValueError(f"no {batch.tenant}")

    called = note_calls(inline, fail)
    save(inline)
    quick(inline)
    with pytest.raises(RunFailed, match="no a"):
        work(inline)
    assert sorted(called) == TENANTS
    found = inline.runtime.gate.look("invoices", ["a", "c"])
    assert [(status.state, status.held) for status in found] == [(State.WAITING, True)] * 2
    assert {tenant for tenant, records in handled(inline).items() if records} == {"b", "d"}
    (told,) = [record for record in caplog.records if record.name == slot.__name__]
    assert "tenant 'c' failed" in told.getMessage()
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "no c"


def test_one_whose_companions_were_done_elsewhere_takes_a_whole_batch(inline: Inline) -> None:
    sizes: list[int] = []
    inline.handle(lambda batch: sizes.append(len(batch)))
    save(inline)
    runs = taken(inline)
    for run in runs[1:]:
        slot.run_tenant(inline.runtime, *run)
    for number in range(30):
        record_invoice(inline.deployment.engine, "a", f"more {number}", {})
    pace = inline.runtime.paces["invoices"] = Pace()
    for records in (1, 1, 20, 20):
        pace.note(records, 0.001 * records)
    sizes.clear()
    slot.run_together(inline.runtime, runs)
    assert sizes == [31]


def test_one_whose_cursor_was_lost_meanwhile_costs_the_others_nothing(inline: Inline) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            with inline.deployment.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE taskbridge.sync_cursors SET owner = 'z' WHERE tenant = 'b'")

    inline.handle(handle)
    save(inline)
    assert run_together(inline) == [None] * 4
    assert handled(inline) == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_runs_of_two_pipelines_over_two_sources_begin_together(inline: Inline) -> None:
    called: list[tuple[str, str, str]] = []
    two_pipelines(inline, lambda batch: called.append((batch.pipeline, batch.tenant, batch[0].external_id)))
    save(inline, "ab", number="1")
    save_orders(inline, "ab")
    errors = run_together(inline)
    assert errors == [None] * 4
    expected = [(name, tenant, "1") for name in ("invoices", "orders") for tenant in ("a", "b")]
    assert sorted(called) == expected
    cursors = inline.deployment.rows("SELECT pipeline, tenant, records FROM taskbridge.sync_cursors")
    assert sorted(tuple(row) for row in cursors) == [(name, tenant, 1) for name, tenant, _ in expected]
    assert inline.runtime.gate.active("invoices") == inline.runtime.gate.active("orders") == []
