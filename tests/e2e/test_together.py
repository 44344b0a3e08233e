"""Runs of several tenants that share a message: short ones follow one another, and nobody waits behind a long one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from benchmarks.queued import runs_in
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Queue, State
from taskbridge.running import runner
from taskbridge.running.ticker import fire_due
from taskbridge.store import record_invoice
from tests.deployment import Deployment
from tests.inline import Inline
from tests.waiting import wait_until

Runs = list[tuple[str, str]]


@pytest.fixture
def inline(deployment: Deployment) -> Inline:
    return Inline(deployment)


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not make short runs long."""
    monkeypatch.setattr(runner, "SHARED_BUDGET", 30.0)


@pytest.fixture
def messages(deployment: Deployment) -> Callable[[], list[Runs]]:
    """Take all messages of the continuation queue: the (tenant, token) pairs that each holds."""

    def take() -> list[Runs]:
        taken = []
        while (text := deployment.redis.rpop(Queue.NEXT.value)) is not None:
            taken.append(runs_in(str(text)))
        return taken

    return take


def queued(inline: Inline, *tenants: str) -> Runs:
    """Give each tenant an invoice and a run whose message is lost."""
    for tenant in tenants:
        record_invoice(inline.deployment.engine, tenant, "1", {})
        inline.deployment.notify_event.delay(tenant)
    inline.deployment.redis.delete(Queue.FIRST.value)
    return [
        (tenant, str(status.token))
        for tenant, status in zip(tenants, inline.runtime.gate.look("invoices", tenants), strict=True)
    ]


def test_they_run_one_after_another(inline: Inline, messages: Callable[[], list[Runs]]) -> None:
    taken: list[str] = []
    inline.handle(lambda batch: taken.append(batch.tenant))
    runner.run_tenants(inline.runtime, "invoices", queued(inline, "a", "b", "c"))
    assert taken == ["a", "b", "c"]
    assert not inline.runtime.gate.active("invoices")
    assert messages() == []


def test_one_that_fails_stops_none_and_is_reported(inline: Inline) -> None:
    taken: list[str] = []

    def handle(batch: Batch) -> None:
        if batch.tenant in "bc":
            raise ValueError(f"no {batch.tenant}")
        taken.append(batch.tenant)

    inline.handle(handle)
    with pytest.raises(ValueError, match="no b"):
        runner.run_tenants(inline.runtime, "invoices", queued(inline, "a", "b", "c", "d"))
    assert taken == ["a", "d"]
    failed = inline.runtime.gate.look("invoices", ["b", "c"])
    assert [(status.state, status.held) for status in failed] == [(State.WAITING, True)] * 2


def test_one_that_was_done_elsewhere_is_passed_over(inline: Inline) -> None:
    taken: list[str] = []
    inline.handle(lambda batch: taken.append(batch.tenant))
    runs = queued(inline, "a", "b")
    runner.run_tenant(inline.runtime, "invoices", *runs[0])
    runner.run_tenants(inline.runtime, "invoices", runs)
    assert taken == ["a", "b"]


def test_a_worker_that_stops_leaves_the_rest_to_another(
    inline: Inline, messages: Callable[[], list[Runs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.handle(lambda _: monkeypatch.setattr(runner, "is_stopping", lambda: True))
    runs = queued(inline, "a", "b", "c", "d")
    runner.run_tenants(inline.runtime, "invoices", runs)
    assert messages() == [runs[1:]]
    assert [status.state for status in inline.runtime.gate.look("invoices", ["b", "c", "d"])] == [State.QUEUED] * 3


def test_what_does_not_fit_goes_to_the_end_of_the_queue_together(
    inline: Inline, messages: Callable[[], list[Runs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SHARED_BUDGET", 0.5)
    inline.handle(lambda _: time.sleep(0.55))
    runs = queued(inline, "a", "b", "c")
    runner.run_tenants(inline.runtime, "invoices", runs)
    assert messages() == [runs[1:]]


def test_those_behind_a_long_one_become_messages_of_their_own_while_it_works(
    inline: Inline, messages: Callable[[], list[Runs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SHARED_BUDGET", 0.05)
    seen: list[Runs] = []
    done = threading.Event()

    def handle(_: Batch) -> None:
        wait_until(lambda: inline.deployment.redis.llen(Queue.NEXT.value) == 2, "two messages", 20)
        seen.extend(messages())
        done.set()

    inline.handle(handle)
    runs = queued(inline, "a", "b", "c")
    runner.run_tenants(inline.runtime, "invoices", runs)
    assert done.is_set()
    assert seen == [[runs[1]], [runs[2]]]
    assert messages() == []


@pytest.mark.parametrize(
    ("due", "lengths"), [(1, [1]), (15, [1] * 15), (16, [2] * 8), (40, [5] * 8), (200, [16] * 12 + [8])]
)
def test_the_more_are_due_the_more_share_a_message(
    inline: Inline, messages: Callable[[], list[Runs]], due: int, lengths: list[int]
) -> None:
    tenants = [f"tenant {at}" for at in range(due)]
    gate, spacing = inline.runtime.gate, LatencyNeutral().spacing
    gate.notify_many([("invoices", tenant, spacing) for tenant in tenants])
    inline.deployment.redis.delete(Queue.FIRST.value)
    inline.deployment.redis.zadd("sync:due:invoices", dict.fromkeys(tenants, 1))
    fire_due(inline.runtime)
    taken = messages()
    assert [len(runs) for runs in taken] == lengths
    assert sorted(tenant for runs in taken for tenant, _ in runs) == sorted(tenants)
    tokens = {tenant: status.token for tenant, status in zip(tenants, gate.look("invoices", tenants), strict=True)}
    assert {tenant: token for runs in taken for tenant, token in runs} == tokens


@pytest.mark.e2e
def test_a_worker_handles_each_of_many_that_are_due_at_once_once(deployment: Deployment) -> None:
    tenants = [f"tenant {at}" for at in range(150)]
    with deployment.worker():
        for tenant in tenants:
            deployment.save(tenant, "1", notify=False)
        deployment.gate.notify_many([("invoices", tenant, LatencyNeutral().spacing) for tenant in tenants])
        # Their closing sweeps fall due together.
        deployment.wait_until_idle(30)
    assert sorted(deployment.deliveries()) == sorted((tenant, "1") for tenant in tenants)
