"""Latency-neutral batching with real workers: at once, few runs, nothing lost, nobody mixed up."""

from __future__ import annotations

import pytest

from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

NUMBERS = [f"{number:03}" for number in range(50)]


def pushed(deployment: Deployment) -> int:
    """How many messages Redis has been given for its lists since its statistics were reset."""
    return int(deployment.redis.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"])


# The poller may find the record first, and publish its run.
@pytest.mark.parametrize("deployment", [{"tail_interval": 60.0, "base_interval": 600.0}], indirect=True)
def test_the_first_event_is_published_before_notify_returns(deployment: Deployment) -> None:
    # given a worker at rest
    with deployment.worker():
        deployment.save("acme", "1", notify=False)
        deployment.redis.config_resetstat()
        # when one event comes
        deployment.notify_event.delay("acme")
        # then its run has been published, with no timer before it
        assert pushed(deployment) == 1
        deployment.wait_until_idle()
        assert deployment.deliveries() == [("acme", "1")]


# A pass of the poller may fall between a commit and its event; a run that uses up its budget is followed by another.
@pytest.mark.parametrize(
    "deployment", [{"tail_interval": 60.0, "base_interval": 600.0, "run_budget": 60.0}], indirect=True
)
def test_a_burst_makes_two_runs_and_none_without_records(deployment: Deployment) -> None:
    first, *others = NUMBERS
    with deployment.worker(), deployment.engine.connect() as connection:
        # given a handler at work with the first event of a burst: it cannot write into the ledger
        connection.exec_driver_sql("LOCK TABLE ledger IN SHARE MODE")
        deployment.save("acme", first)
        wait_until(lambda: deployment.rows("SELECT 1 FROM pg_locks WHERE NOT granted"), "handler at work")
        # when 49 more come before it ends
        for number in others:
            deployment.save("acme", number)
        connection.commit()
        deployment.wait_until_idle()
        # then one more run takes them all, in more than one batch where the first call took long
        batch, *later = deployment.delivered("acme")
        assert (batch, [number for numbers in later for number in numbers]) == ([first], others)
        # The history has a run shortly after its tenant is idle.
        history = "SELECT events, records FROM taskbridge.runs ORDER BY began_at"
        wait_until(lambda: len(deployment.rows(history)) == 2, "both runs are in the history")
        assert [tuple(run) for run in deployment.rows(history)] == [(1, 1), (len(others), len(others))]
        (counts,) = deployment.rows("SELECT runs, events FROM taskbridge.sync_cursors")
        assert (counts.runs, counts.events) == (2, len(NUMBERS))
        assert deployment.deliveries() == [("acme", number) for number in NUMBERS]


@pytest.mark.parametrize("pool", ["threads", pytest.param("solo", marks=pytest.mark.slow)])
def test_every_pool_runs_the_ticker(deployment: Deployment, pool: str) -> None:
    # The closing sweep is started by the ticker, so an idle tenant proves that there is one.
    with deployment.worker("-P", pool, handler_seconds=0.05):
        deployment.save("acme", *NUMBERS[:5])
        deployment.save("other", *NUMBERS[:5])
        deployment.wait_until_idle()
        assert sorted(deployment.deliveries()) == sorted(
            (tenant, number) for tenant in ("acme", "other") for number in NUMBERS[:5]
        )
