"""A rate limit is one limit, however many workers there are."""

from __future__ import annotations

import pytest

from tests.deployment import Deployment

pytestmark = pytest.mark.e2e

PER_SECOND, BURST = 100, 10


@pytest.mark.slow
def test_a_rate_is_kept_over_several_workers_and_tenants(deployment: Deployment) -> None:
    # given ten tenants with thirty records each, and three workers
    tenants = [f"tenant {number}" for number in range(10)]
    for tenant in tenants:
        deployment.save(tenant, *(f"{number}" for number in range(30)), notify=False)
    with (
        deployment.worker(TEST_RATE_LIMIT=f"{PER_SECOND}/s"),
        deployment.worker("--pool", "threads", TEST_RATE_LIMIT=f"{PER_SECOND}/s"),
        deployment.worker("--pool", "solo", TEST_RATE_LIMIT=f"{PER_SECOND}/s"),
    ):
        for tenant in tenants:
            deployment.notify_event.delay(tenant)
        deployment.wait_until_idle(30)
    # then at no moment more had been delivered than the limit lets through until then, and 1 % more
    rows = deployment.rows(
        "SELECT extract(epoch FROM began - min(began) OVER ())::float, sum(cardinality(numbers)) OVER (ORDER BY began) "
        "FROM ledger ORDER BY began"
    )
    assert rows[-1][1] == 300
    assert len(deployment.deliveries()) == 300
    # A busy machine may begin the first batch that much after it was let through.
    late = [(seconds, count) for seconds, count in rows if count > (BURST + PER_SECOND * (seconds + 0.5)) * 1.01]
    assert late == []
    assert len({worker for (worker,) in deployment.rows("SELECT pid FROM ledger")}) > 1
