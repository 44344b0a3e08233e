"""What `taskbridge doctor` says of real workers."""

from __future__ import annotations

import json
import re
import sys

import pytest

from taskbridge.integration import checks
from taskbridge.integration.checks import Finding, examine
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment
from tests.ending import ended
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PRIORITIES = json.dumps({"priority_steps": [1, 5, 9], "queue_order_strategy": "priority"})
"""None of them is 0, the one that producers write to."""


def told(deployment: Deployment, check: str) -> list[Finding]:
    return [one for one in examine(runtime_of(deployment.app)) if one.check == check]


def lacks(deployment: Deployment, worker: str) -> list[Finding]:
    return [one for one in told(deployment, "workers") if one.text.startswith(f"{worker}@test does not declare")]


def test_a_worker_that_lacks_a_pipeline_or_has_a_short_time_limit_is_named(deployment: Deployment) -> None:
    options = ("--time-limit", "1")
    with deployment.worker(*options, TASKBRIDGE_PIPELINES="tests.pipelines_with_criteria") as lacking:
        named = lacks(deployment, "worker-0")
        assert [one.level for one in named] == ["warning"]
        assert re.match(r"worker-0@test does not declare (.+, )?invoices", named[0].text)
        limits = [one for one in told(deployment, "workers") if "kills the process of a run" in one.text]
        assert [one.level for one in limits] == ["warning"]
        deployment.save("acme", "1")
        declined = "this worker does not declare the pipeline invoices, and has declined 1 of its runs"
        wait_until(lambda: declined in lacking.text(), "the run is declined")
        assert not any(map(deployment.redis.llen, runtime_of(deployment.app).keys.queues)), "it goes round"
        with deployment.worker():
            assert lacks(deployment, "worker-0") == named
            wait_until(lambda: deployment.delivered("acme"), "the other worker's run")


def test_workers_of_another_app_are_examined_with_the_broker_options_of_that_app(deployment: Deployment) -> None:
    def doctor(*arguments: str) -> dict[str, list[dict[str, str]]]:
        command = [sys.executable, "-c", "from taskbridge.cli.main import main; main()", "doctor", "--json", *arguments]
        found: dict[str, list[dict[str, str]]] = {}
        for one in json.loads(ended(command, environment).stdout)["findings"]:
            found.setdefault(one["check"], []).append(one)
        return found

    options = json.dumps({"global_keyprefix": "shop-"})
    environment = deployment.environment(TEST_BROKER_OPTIONS=options)
    with deployment.worker(app="tests.host.options", TEST_BROKER_OPTIONS=options):
        wait_until(lambda: "doctor -A MODULE" in doctor()["workers"][0]["remedy"], "the worker was seen elsewhere")
        found = doctor("-A", "tests.host.options")
    assert {one["level"] for one in found["workers"] if "does not declare" not in one["text"]} == {"ok"}
    assert [one["level"] for one in found["probe"]] == ["ok"]


def test_a_probe_comes_back_from_a_worker_that_is_busy_or_not_and_leaves_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PROBE_SECONDS", 2.0)
    assert told(deployment, "probe") == [], "there is no worker"
    queues = runtime_of(deployment.app).keys.queues
    with deployment.worker(handler_seconds=60.0) as worker:
        # Workers that are not to be asked are not missed.
        deployment.app.conf.worker_enable_remote_control = False
        found = [one for one in examine(runtime_of(deployment.app)) if one.check in ("workers", "probe")]
        assert [(one.check, one.level) for one in found] == [("workers", "warning"), ("probe", "ok")]
        deployment.app.conf.worker_enable_remote_control = True
        assert not any(map(deployment.redis.llen, queues))
        assert list(deployment.redis.scan_iter("*probe*")) == []
        assert deployment.rows("SELECT 1 FROM taskbridge.runs") == []
        assert deployment.gate.active("taskbridge.probe") == []
        for tenant in ("acme", "bolt"):
            deployment.save(tenant, "1")
        wait_until(lambda: len(deployment.rows("SELECT 1 FROM ledger")) == 2, "both slots are busy")
        found = told(deployment, "probe")
        assert {one.level for one in found} == {"warning"}
        assert "all slots are busy" in found[0].text
        worker.kill()


def test_a_probe_that_does_not_come_back_is_a_problem(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: here workers read other lists than producers write."""
    monkeypatch.setattr(checks, "PROBE_SECONDS", 2.0)
    with deployment.worker(app="tests.host.options", TEST_BROKER_OPTIONS=PRIORITIES):
        assert [one.level for one in told(deployment, "probe")] == ["problem", "problem"]
        assert not any(map(deployment.redis.llen, runtime_of(deployment.app).keys.queues))
