"""What operators do while workers run: pause and resume, drain, and the ways out of quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from tests.cli.program import Program
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine, states
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

# Nothing but an event or an operator makes a run in the time of a test.
SELDOM = pytest.mark.parametrize("deployment", [{"base_interval": 600.0, "tail_interval": 60.0}], indirect=True)


def taskbridge(deployment: Deployment, *arguments: str) -> Any:
    """Run a command in a process of its own, which must succeed; return its JSON."""
    ended = Program(deployment.logs, deployment.environment())(*arguments, "--json")
    assert ended.status == 0, ended.stderr
    return ended.json


def held(deployment: Deployment, tenant: str) -> bool:
    return runtime_of(deployment.app).gate.look("invoices", [tenant])[0].held


def save(deployment: Deployment, number: str, document: dict[str, Any]) -> None:
    record_invoice(deployment.engine, "acme", number, document)
    deployment.notify_event.delay("acme")


def delivered(deployment: Deployment, *expected: tuple[str, str]) -> None:
    """Wait until just these were delivered, and nothing is under way any more."""
    wait_until(lambda: sorted(deployment.deliveries()) == sorted(expected), f"deliveries {expected}")
    deployment.wait_until_idle()
    assert sorted(deployment.deliveries()) == sorted(expected)


def test_nothing_of_a_paused_tenant_runs_and_nothing_of_it_is_lost(deployment: Deployment) -> None:
    with deployment.worker():
        taskbridge(deployment, "pause", "acme")
        deployment.save("acme", "1", "2", "3")
        deployment.save("bolt", "1")
        wait_until(lambda: held(deployment, "acme"), "the paused tenant is held")
        wait_until(lambda: deployment.deliveries() == [("bolt", "1")], "the other tenant goes on")
        deployment.save("acme", "4")
        pending = {one for one, state in states(deployment.engine).items() if state == "pending"}
        assert pending == {("acme", number) for number in "1234"}
        assert taskbridge(deployment, "resume", "acme")["started"] == 1
        delivered(deployment, ("bolt", "1"), *(("acme", number) for number in "1234"))


def test_drain_lets_what_was_there_be_handled_and_pauses(deployment: Deployment) -> None:
    with deployment.worker(handler_seconds=0.3, batch_size=1):
        deployment.save("acme", "1", "2", "3")
        found = taskbridge(deployment, "drain", "--timeout", "60")
        assert (found["drained"], found["paused"]) == (True, True)
        assert sorted(deployment.deliveries()) == [("acme", number) for number in "123"]


@SELDOM
def test_a_record_that_is_tried_again_is_handled_and_leaves_quarantine(deployment: Deployment) -> None:
    with deployment.worker():
        deployment.save("acme", "1", "2")
        delivered(deployment, ("acme", "1"), ("acme", "2"))
        put_in_quarantine(deployment.engine, "acme", "1")
        assert taskbridge(deployment, "quarantine", "retry", "1")["retried"] == 1
        delivered(deployment, ("acme", "1"), ("acme", "1"), ("acme", "2"))
        assert set(states(deployment.engine).values()) == {"handled"}
        assert deployment.rows("SELECT * FROM taskbridge.quarantine") == []


@pytest.mark.slow
def test_a_bad_record_goes_all_the_way_and_comes_back_once_it_is_put_right(deployment: Deployment) -> None:
    with deployment.worker():
        # Where nothing was ever handled, the reason may be the downstream and not the record.
        deployment.save("acme", "first")
        delivered(deployment, ("acme", "first"))
        save(deployment, "bad", {"fail": True})
        wait_until(lambda: states(deployment.engine)["acme", "bad"] == "quarantined", "quarantine", 40)
        (found,) = taskbridge(deployment, "quarantine", "list")["records"]
        assert (found["external_id"], found["cause"]) == ("bad", "failed")
        assert "bad cannot be handled" in found["reason"]
        deployment.save("acme", "good")
        wait_until(lambda: ("acme", "good") in deployment.deliveries(), "the good record goes on")
        save(deployment, "bad", {"fail": False})
        delivered(deployment, *(("acme", number) for number in ("first", "good", "bad")))
        assert taskbridge(deployment, "quarantine", "list", "--all")["count"] == 0
