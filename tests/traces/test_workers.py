"""A real worker's spans lead to the producers' spans; and without OpenTelemetry all goes on without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskbridge.producer.producer import Bridge
from tests.deployment import Deployment
from tests.inline import Inline
from tests.traces.conftest import Spans, context_of
from tests.waiting import wait_until

WITHOUT = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Refuse())
import taskbridge
from taskbridge import app
from taskbridge.process.runtime import runtime_of
from taskbridge.worker import slot

assert taskbridge.record_invoice("acme", "1", {})
assert taskbridge.notify_event.delay("acme").get() == "started"
runtime = runtime_of(app)
(message,), _ = runtime.gate.take(1, 1)
slot.run_tenant(runtime, *message.run)
assert "opentelemetry" not in sys.modules
print("fine")
"""


def _spans(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# The poller does not come before the events: what it finds first has no event's span.
@pytest.mark.slow
@pytest.mark.parametrize("deployment", [{"tail_interval": 10, "base_interval": 60}], indirect=True)
@pytest.mark.e2e
def test_a_workers_span_that_leads_to_no_producer(deployment: Deployment, spans: Spans, tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    bridge = Bridge(deployment.app, deployment.notify_event)
    Inline(deployment).handle(lambda _: None)
    with deployment.worker(TASKBRIDGE_PIPELINES="tests.traces.worker_spans", TEST_SPANS=str(file)):
        with spans.tracer.start_as_current_span("request") as request:
            for tenant in ("acme", "bolt", "cord"):
                bridge.record_invoice(tenant, "1", {}, notify="after commit")

        def runs() -> list[dict[str, Any]]:
            return [span for span in _spans(file) if span["name"] == "run invoices"]

        wait_until(lambda: len(runs()) == 3, "each tenant has a run")

    found = _spans(file)
    events = {
        span.attributes["taskbridge.tenant"]: (span.attributes["taskbridge.run"], span)
        for span in spans.named("notify invoices")
        if span.attributes
    }
    by_id = {span["context"]["span_id"]: span for span in found}
    for run in runs():
        token, event = events[run["attributes"]["taskbridge.tenant"]]
        assert run["parent_id"] is None
        assert run["attributes"]["taskbridge.run"] == token
        assert [int(link["context"]["span_id"], 16) for link in run["links"]] == [
            context_of(event)[1],
            context_of(request)[1],
        ]
    asks = [span for span in found if span["name"] == "asks somebody"]
    assert len(asks) == 3
    for ask in asks:
        handle = by_id[ask["parent_id"]]
        assert handle["name"] == "handle invoices"
        assert by_id[handle["parent_id"]]["name"] == "run invoices"
    assert len({run["context"]["trace_id"] for run in runs()}) == 3


def test_without_the_package_nothing_of_it_is_needed(deployment: Deployment, tmp_path: Path) -> None:
    environment = deployment.environment(TASKBRIDGE_PIPELINES="")
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "fine\n", ended.stderr
    assert deployment.deliveries() == [("acme", "1")]
