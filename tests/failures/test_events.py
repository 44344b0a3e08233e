"""Each event is counted once on its tenant's cursor whatever happens to its run, and in the history if that ends."""

from __future__ import annotations

import pytest

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.handlers.journal import journal
from taskbridge.worker.poller import poll_changes
from tests.failures.drill import BAD, Drill
from tests.failures.test_deaths import Killer


def notify(drill: Drill, count: int = 1, tenant: str = "acme") -> None:
    for _ in range(count):
        drill.deployment.notify_event.delay(tenant)


def counted(drill: Drill) -> tuple[int, int]:
    """Events on the cursors, and in the rows of the history."""
    ((on_cursors,),) = drill.deployment.rows("SELECT coalesce(sum(events), 0)::int FROM taskbridge.sync_cursors")
    ((in_rows,),) = drill.deployment.rows("SELECT coalesce(sum(events), 0)::int FROM taskbridge.runs")
    return on_cursors, in_rows


def rows(drill: Drill) -> list[tuple[str, str, int, int, int]]:
    found = drill.deployment.rows(
        "SELECT reason, outcome, events, burst_run, records FROM taskbridge.runs ORDER BY token, outcome"
    )
    return [tuple(row) for row in found]


def test_a_run_whose_records_the_poller_was_quicker_with_has_its_events(drill: Drill) -> None:
    drill.handle(journal)
    poll_changes(drill.runtime, "invoices")
    drill.deployment.save("acme", "1", notify=False)
    poll_changes(drill.runtime, "invoices")
    assert drill.run_one()
    assert counted(drill) == (0, 0), "nobody sent an event yet"
    drill.go_on()
    notify(drill, 3)
    drill.go_on()
    assert rows(drill) == [("record", "handled", 0, 1, 1), ("event", "handled", 3, 1, 0)]
    assert counted(drill) == (3, 3)


def test_a_death_that_ends_in_quarantine_has_no_event_twice(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is written before another record is tried, and quarantine moves the cursor after that."""
    killer, sent = Killer(drill, monkeypatch), 1
    drill.handle(killer.dies_over_bad)
    drill.save("acme", BAD, "08")
    while drill.states() != {"handled": 1, "quarantined": 1}:
        notify(drill, 3)
        sent += 3
        killer.run_one()
        assert sent < 150
    drill.go_on()
    on_cursors, in_rows = counted(drill)
    assert on_cursors == sent
    assert in_rows <= sent


@pytest.mark.parametrize("reason", ["handler", "probe", "wait"])
def test_a_failure_a_probe_and_a_wait_have_their_events(drill: Drill, reason: str) -> None:
    def fails(_: Batch) -> None:
        raise RetryAfter(300) if reason == "wait" else ConnectionError("refused")

    drill.handle(fails)
    tenants = ["acme", "bolt", "core"] if reason == "probe" else ["acme"]
    for tenant in tenants:
        drill.save(tenant, "1")
        notify(drill, 2, tenant)
    drill.go_on(within_ms=60_000)
    assert drill.circuit().open is (reason == "probe")
    drill.handle(journal)
    drill.go_on()
    assert counted(drill) == (3 * len(tenants), 3 * len(tenants))
