"""Paused tenants with pending records cost no run and no command of Redis, until somebody resumes them."""

from __future__ import annotations

import pytest

from taskbridge.declaring.pipeline import INVOICES
from taskbridge.gate import Answer
from taskbridge.producer.notify import notify_many, start
from taskbridge.store import record_invoice
from taskbridge.testing.clock import inject_clock
from taskbridge.worker.poller import poll_changes, reconcile
from taskbridge.worker.ticker import fire_due
from tests.costs.meter import metered
from tests.costs.paths import do_nothing
from tests.deployment import Deployment

TENANTS = [f"tenant-{at}" for at in range(50)]
TEN_MINUTES_US = 600_000_000


@pytest.mark.parametrize("one_by_one", [True, False])
def test_paused_tenants_cost_nothing_until_they_are_resumed(deployment: Deployment, one_by_one: bool) -> None:
    with metered(deployment) as meter:
        clock = inject_clock(meter.runtime)
        meter.inline.handle(do_nothing)

        def look() -> None:
            clock.us += TEN_MINUTES_US
            poll_changes(meter.runtime, INVOICES, stores=False)
            reconcile(meter.runtime, INVOICES)
            fire_due(meter.runtime)

        look()
        nobody = meter.count(look)
        paused: list[str | None] = [*TENANTS] if one_by_one else [None]
        for tenant in paused:
            meter.runtime.pauses.pause(INVOICES, tenant)
        for tenant in TENANTS:
            record_invoice(deployment.engine, tenant, "1", {})
        notify_many(deployment.app, TENANTS)
        assert meter.inline.run_all() == len(TENANTS), "each finds the pause, once"

        for _ in range(3):
            cost = meter.count(look)
            assert (cost.trips, cost.inside, cost.messages) == (nobody.trips, nobody.inside, 0), meter.trace
            assert notify_many(deployment.app, TENANTS) == [Answer.ABSORBED] * len(TENANTS)
            assert meter.inline.run_all() == 0
        assert meter.inline.seen == []

        for tenant in paused:
            meter.runtime.pauses.release(INVOICES, tenant)
        if one_by_one:
            start(deployment.app, TENANTS, INVOICES)
        else:
            # Whoever resumed them died before it started them, and the reconciler finds them.
            reconcile(meter.runtime, INVOICES)
            fire_due(meter.runtime)
        while meter.inline.run_all():
            fire_due(meter.runtime)
        assert len(meter.inline.seen) == len(TENANTS)
