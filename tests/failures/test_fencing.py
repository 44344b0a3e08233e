"""A handler that goes on although its run was replaced takes nothing into effect."""

from __future__ import annotations

from taskbridge.declaring.batch import Batch
from taskbridge.handlers.journal import journal
from tests.failures.drill import Drill


def test_a_handler_that_ignores_the_loss_of_its_heartbeat_cannot_advance(drill: Drill) -> None:
    def overslept(batch: Batch) -> None:
        if len(drill.calls) == 1:
            # The deadline passes unnoticed, and another worker takes the tenant over and does all of it.
            drill.gate.us += 6_000_000
            drill.gate.expire("invoices", [batch.tenant])
            assert drill.run_one()
            assert drill.states() == {"handled": 2}
        journal(batch)

    drill.handle(overslept)
    drill.save("acme", "a", "b")
    drill.go_on()
    assert drill.calls == [("acme", ["a", "b"]), ("acme", ["a", "b"])]
    assert drill.deployment.deliveries() == [("acme", "a"), ("acme", "b")]
    assert drill.standing() == []


def test_a_replaced_run_that_fails_says_nothing_against_a_record(drill: Drill) -> None:
    def overslept(batch: Batch) -> None:
        if len(drill.calls) == 1:
            drill.gate.us += 6_000_000
            drill.gate.expire("invoices", [batch.tenant])
            assert drill.run_one()
            raise ValueError("too late to matter")
        journal(batch)

    drill.handle(overslept, max_attempts=1)
    drill.save("acme", "a")
    drill.go_on()
    assert drill.deployment.deliveries() == [("acme", "a")]
    assert drill.quarantine() == []
    assert drill.deployment.rows("SELECT failures, suspects FROM taskbridge.sync_cursors") == [(0, 0)]
