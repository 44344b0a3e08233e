"""Why a tenant does not run: each cause is reached by a real worker, and said in one sentence."""

from __future__ import annotations

import re
import signal
from typing import Final

import pytest

from taskbridge.observe import inspect
from taskbridge.observe.context import Context
from taskbridge.observe.inspect import TenantAnswer
from taskbridge.observe.status import Cause
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MODULE: Final = "tests.pipelines_of_states"


def until(context: Context, pipeline: str, tenant: str, cause: Cause, seconds: float = 15.0) -> TenantAnswer:
    """Ask until the cause is this one."""
    seen: list[TenantAnswer] = []

    def asked() -> bool:
        seen[:] = [inspect.tenant(context, pipeline, tenant)]
        return seen[0].cause is cause

    try:
        wait_until(asked, f"{tenant} of {pipeline}: {cause}", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {seen[0].cause}: {seen[0].sentence}") from None
    return seen[0]


def said(answer: TenantAnswer, pattern: str) -> None:
    assert re.search(pattern, answer.sentence), answer.sentence


def test_what_holds_a_tenant_is_named(deployment: Deployment, context: Context) -> None:
    pauses = runtime_of(deployment.app).pauses
    pauses.pause("orders", "paused", "the price list is wrong", by="alice")
    for name in ("paused", "quiet"):
        record(deployment.engine, "orders", name, "1", {})
    record(deployment.engine, "orders", "failing", "1", {"do": "fail"})
    record(deployment.engine, "orders", "asked", "1", {"do": "wait"})
    for number in range(3):
        record(deployment.engine, "calls", "limited", str(number), {})
    for tenant in ("one", "two", "three"):
        record(deployment.engine, "broken", tenant, "1", {"do": "down"})
    for name in ("first", "second"):
        record(deployment.engine, "narrow", name, "1", {"seconds": 10})
    with deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        failing = until(context, "orders", "failing", Cause.BACK_OFF)
        said(failing, r"^back-off: it failed \d+ times? in a row, for .* next try .*; last error: .*no currency")
        assert failing.pending == 1
        assert failing.failing_since is not None

        def narrow() -> dict[Cause, TenantAnswer]:
            return {(one := inspect.tenant(context, "narrow", name)).cause: one for name in ("first", "second")}

        wait_until(lambda: narrow().keys() == {Cause.RUNNING, Cause.WAIT_QUEUE}, "one runs and one waits")
        running, waiting = (narrow()[cause] for cause in (Cause.RUNNING, Cause.WAIT_QUEUE))
        said(running, r"^it is running: run \d{16}-\S+ on the worker worker-0@test, began .*, last heartbeat \d")
        assert running.holder is not None
        assert (running.holder.alive, running.holder.worker) == (True, "worker-0@test")
        said(waiting, r"^it is number 1 of 1 in the wait queue for a free run slot of narrow \(1 in all\)$")

        # Its run's message may be in the queue still: only the run learns of the pause.
        wait_until(lambda: inspect.tenant(context, "orders", "paused").state == "paused", "paused")
        paused = until(context, "orders", "paused", Cause.PAUSED)
        said(paused, r"^paused by alice, \d+s ago \(the price list is wrong\)$")
        assert paused.pause is not None
        assert (paused.pause.paused_by, paused.state, paused.pending) == ("alice", "paused", 1)
        said(until(context, "orders", "asked", Cause.ASKED_TO_WAIT), r"asked to wait \(RetryAfter\); next try in ")
        said(until(context, "calls", "limited", Cause.RATE), r"^the rate limit of calls \(1/m\) is used up; it re")
        for tenant in ("one", "two", "three"):
            record(deployment.engine, "broken", tenant, "2", {"do": "down"})
        broken = until(context, "broken", "one", Cause.CIRCUIT, 30)
        said(broken, r"^the circuit of broken has been open for .* number \d of \d in the wait queue.*nobody answers$")
        quiet = until(context, "orders", "quiet", Cause.NOTHING)
        said(quiet, r"^idle: nothing is pending, and its last run began ")
        assert (quiet.handled, quiet.runs) == (1, 1)
        assert inspect.tenant(context, "orders", "nobody").cause is Cause.UNKNOWN

        pauses.pause("orders")
        record(deployment.engine, "orders", "quiet", "2", {})
        said(until(context, "orders", "quiet", Cause.PAUSED), r"^its whole pipeline is paused, \d+s ago$")


def test_a_frozen_worker_is_told_from_a_slow_handler(deployment: Deployment, context: Context) -> None:
    with deployment.worker("-P", "solo", TASKBRIDGE_PIPELINES=MODULE) as worker:
        record(deployment.engine, "orders", "acme", "1", {"seconds": 20})
        until(context, "orders", "acme", Cause.RUNNING)
        worker.signal_all(signal.SIGSTOP)
        try:
            frozen = until(context, "orders", "acme", Cause.FROZEN)
            said(
                frozen, r"^run \d{16}-\S+ on the worker worker-0@test has it and sent its last heartbeat \d\.\d s ago: "
            )
            assert frozen.holder is not None
            assert (frozen.state, frozen.holder.alive) == ("no heartbeat", False)
        finally:
            worker.signal_all(signal.SIGCONT)
            worker.kill()
