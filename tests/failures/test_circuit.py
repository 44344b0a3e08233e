"""Everything fails: nothing is quarantined, one probe at a time, and the circuit closes by itself."""

from __future__ import annotations

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.handlers.journal import journal
from tests.failures.drill import Downstream, Drill, refuse

TENANTS = [f"tenant {number}" for number in range(8)]


CAUSED = ValueError("the answer is no JSON")
CAUSED.__cause__ = ConnectionResetError("by peer")


@pytest.mark.parametrize("error", [CAUSED, ValueError("503")], ids=str)
def test_while_everything_fails_nothing_is_quarantined_and_all_is_handled_after(drill: Drill, error: Exception) -> None:
    downstream = Downstream(error)
    drill.handle(downstream, max_attempts=3)
    for tenant in TENANTS:
        drill.save(tenant, "a", "b", "c")
    drill.go_on(until=lambda: drill.circuit().open)
    before = len(drill.calls)
    drill.go_on(within_ms=1_000_000)
    assert drill.quarantine() == []
    assert drill.circuit().open
    assert drill.circuit().opened == 1
    probes = drill.calls[before:]
    assert {len(numbers) for _, numbers in probes} == {1}, "a probe tries one record"
    assert len({tenant for tenant, _ in probes}) > 1, "the tenants take turns"
    assert drill.states() == {"pending": 24}
    in_the_outage = len(drill.calls)
    assert in_the_outage < 100, "a probe every 30 s at the most"
    downstream.error = None
    drill.go_on()
    assert not drill.circuit().open
    assert drill.states() == {"handled": 24}
    assert len(drill.deployment.deliveries()) == 24
    assert drill.circuit().closed_at_ms is not None


def test_one_tenant_alone_while_everything_fails(drill: Drill) -> None:
    downstream = Downstream(ConnectionError("refused"))
    drill.handle(downstream, max_attempts=3)
    drill.save("acme", *"abcdefgh")
    drill.go_on(within_ms=600_000)
    assert drill.quarantine() == []
    assert drill.circuit().opened == 0, "one tenant alone does not speak for the others"
    assert len(drill.times) < 40, "a try every 30 s at the most"
    healed = drill.now_ms
    downstream.error = None
    drill.go_on(until=lambda: drill.states() == {"handled": 8})
    assert drill.now_ms - healed <= 31_000
    drill.go_on()
    assert len(drill.deployment.deliveries()) == 8


def test_three_tenants_with_a_bad_record_each_are_no_outage_for_long(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if any(record.external_id == "a" for record in batch):
            raise ValueError("bad")
        journal(batch)

    drill.handle(handler, max_attempts=3)
    for tenant in TENANTS[:3]:
        drill.save(tenant, "a", "b", "c")
    drill.go_on()
    assert drill.states() == {"quarantined": 3, "handled": 6}
    assert not drill.circuit().open


def test_of_bad_records_in_a_row_with_nothing_else_to_try_the_third_waits(drill: Drill) -> None:
    drill.handle(Downstream(ValueError("503")), max_attempts=2)
    for number in "abc":
        drill.save("acme", number)
        drill.go_on(within_ms=60_000)
    assert len(drill.quarantine()) == 2
    assert drill.circuit().opened == 0
    drill.handle(refuse("c"), max_attempts=2)
    drill.save("other", "a")
    drill.go_on()
    assert len(drill.quarantine()) == 3, "something else was handled"


def test_a_pipeline_says_which_errors_are_the_downstreams(drill: Drill) -> None:
    class Busy(Exception):
        pass

    drill.handle(Downstream(Busy("429")), max_attempts=1, downstream_errors=(Busy,))
    drill.save("acme", "a")
    drill.save("other", "a")
    drill.go_on(within_ms=100_000)
    assert drill.quarantine() == []
    assert drill.circuit().open


def test_a_paused_tenant_does_not_probe(drill: Drill) -> None:
    drill.handle(Downstream(ConnectionError("refused")))
    drill.save("acme", "a")
    drill.save("third", "a")
    drill.go_on(until=lambda: drill.circuit().open)
    drill.deployment.execute("INSERT INTO taskbridge.pauses (pipeline, tenant) VALUES ('invoices', '')")
    calls = len(drill.calls)
    drill.go_on(within_ms=20_000)
    assert len(drill.calls) == calls
    for status in drill.standing():
        assert status.held
        assert status.deadline_ms is not None
        assert status.deadline_ms * 1000 - drill.gate.us > 30_000_000
