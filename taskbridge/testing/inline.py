"""Runs in the test's own process: real Redis, real Postgres, and a clock that moves on to each deadline."""

from __future__ import annotations

import logging
from typing import Final

from celery import Celery

from taskbridge.common.names import check_tenant
from taskbridge.declaring.batch import RetryAfter
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import ConfigurationError
from taskbridge.gate import Hold, State
from taskbridge.integration.app import app as package_app
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.testing.clock import InjectedClock, inject_clock
from taskbridge.worker import slot

__all__ = ["assert_notified", "drain", "drain_all", "notified"]

log = logging.getLogger(__name__)

MOST_RUNS: Final = 1_000
_SENT_WITHIN: Final = 10.0


def drain(
    tenant: str,
    pipeline: str = INVOICES,
    *,
    through_failures: bool = False,
    most_runs: int = MOST_RUNS,
    app: Celery = package_app,
) -> int:
    """Do the tenant's runs in this process until its runner has ended; return how many there were.

    The gate, the cursor, the runner and the handler are the real ones. The gate's clock moves on to each deadline, so
    nothing waits for a lease, a delay, a back-off or a rate limit. The runs' messages stay in the broker. A tenant that
    nobody notified has no runner, whatever is pending: then nothing is run.

    Args:
        tenant: whose runs.
        pipeline: of which pipeline.
        through_failures: go on as workers do when the handler raises, until its records are handled or in quarantine.
        most_runs: fail if the runner has not ended after so many runs.
        app: the Celery app, if it is not `taskbridge.app`.

    Raises:
        Exception: what the handler raised, unless `through_failures`. Its tenant waits for a back-off, and the next
            `drain` tries again.
        AssertionError: the runner has not ended after `most_runs` runs, as where the handler raises `RetryAfter` each
            time; the message says for how long.
        ConfigurationError: the test has no deployment of its own.
        InvalidName, UnknownPipeline, Unavailable: as `taskbridge.notify_event`.
    """
    runtime = _of_a_test(app)
    runtime.pipelines[pipeline]
    check_tenant(tenant)
    gate, runs = _clocked(runtime), 0
    of: tuple[str, str] = (pipeline, tenant)
    waits = runtime.waits = dict[tuple[str, str], RetryAfter]()
    while True:
        (status,) = gate.look(pipeline, [tenant])
        if status.state is State.IDLE:
            return runs
        if status.state is State.QUEUED and status.token is not None:
            if runs == most_runs:
                raise AssertionError(
                    f"tenant {tenant!r} of {pipeline!r} is not idle after {runs} runs: {_why(waits.get(of))}"
                )
            runs += 1
            # What an earlier run asked for says nothing about this one.
            waits.pop(of, None)
            _run(runtime, pipeline, tenant, status.token, through_failures=through_failures)
            continue
        if status.deadline_ms is not None:
            gate.pass_to(status.deadline_ms)
        # Expired early, a runner that only lingers would get a run.
        early = status.waits_for_turn or status.hold is Hold.PAUSED or status.deadline_ms is None
        gate.expire(pipeline, [tenant], early=early)


def drain_all(*, through_failures: bool = False, most_runs: int = MOST_RUNS, app: Celery = package_app) -> int:
    """Drain every tenant that was notified, of all pipelines, and those that their runs notify; return how many runs.

    Args, Raises: as `drain`; `most_runs` is for each tenant.
    """
    runtime, runs = _of_a_test(app), 0
    while waiting := [(name, tenant) for name in runtime.pipelines.names() for tenant in runtime.gate.active(name)]:
        for pipeline, tenant in waiting:
            runs += drain(tenant, pipeline, through_failures=through_failures, most_runs=most_runs, app=app)
    return runs


def notified(pipeline: str = INVOICES, *, app: Celery = package_app) -> dict[str, int]:
    """Return the tenants that were notified and not drained since, each with the number of its events.

    Raises:
        ConfigurationError: the test has no deployment of its own.
        UnknownPipeline: no loaded module declares the pipeline.
    """
    runtime = _of_a_test(app)
    runtime.pipelines[pipeline]
    tenants = runtime.gate.active(pipeline)
    return {tenant: status.events for tenant, status in zip(tenants, runtime.gate.look(pipeline, tenants), strict=True)}


def assert_notified(tenant: str, pipeline: str = INVOICES, *, app: Celery = package_app) -> None:
    """Fail unless the tenant was notified and not drained since.

    Raises:
        AssertionError: with the tenants that were.
        ConfigurationError, UnknownPipeline: as `notified`.
    """
    found = notified(pipeline, app=app)
    if tenant not in found:
        raise AssertionError(
            f"tenant {tenant!r} was not notified in the pipeline {pipeline!r}; "
            f"notified since the last drain: {', '.join(map(repr, found)) or 'nobody'}"
        )


def _of_a_test(app: Celery) -> Runtime:
    """Return the runtime of a test's own deployment. Elsewhere runs would be those of people's tenants.

    Raises:
        ConfigurationError: there is no such deployment.
    """
    runtime = runtime_of(app)
    if not runtime.runs_by_hand:
        raise ConfigurationError(
            "this test has no deployment of its own, so its runs would be those of the servers that the environment "
            "names",
            'let it use the fixture `taskbridge_settings` of "taskbridge.testing.plugin", as by '
            '`@pytest.mark.usefixtures("taskbridge_settings")`; in a TransactionTestCase of Django use `deployed`',
        )
    # What a commit in a coroutine sends may still be on its way.
    runtime.event_threads.wait(_SENT_WITHIN)
    return runtime


def _why(told: RetryAfter | None) -> str:
    """Say why a tenant does not become idle; `told`: what its handler asked for in the last run."""
    if told is None:
        return "look whether it is paused, whether its handler fails, and whether it records anew what it is given"
    return (
        f"in the last one its handler asked to {told} (RetryAfter), as it does when the downstream answers 429; the "
        "clock moves on by itself, so let the downstream of the test take the batch at last, or expect this error"
    )


def _clocked(runtime: Runtime) -> InjectedClock:
    return runtime.gate if isinstance(runtime.gate, InjectedClock) else inject_clock(runtime)


def _run(runtime: Runtime, pipeline: str, tenant: str, token: str, *, through_failures: bool) -> None:
    try:
        slot.run_tenant(runtime, pipeline, tenant, token)
    except Exception as error:
        if not through_failures:
            raise
        log.info("run of %s for tenant %r failed, and is tried again: %r", pipeline, tenant, error)
