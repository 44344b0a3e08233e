"""Perform runs in the test's own process, with real Redis and Postgres, and a clock that skips to each deadline."""

from __future__ import annotations

import logging
from concurrent.futures import wait
from typing import Final

from celery import Celery
from celery._state import pop_current_task, push_current_task  # type: ignore[attr-defined]

from taskbridge.common.names import check_tenant
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import ConfigurationError
from taskbridge.gate import Hold, State
from taskbridge.gate.message import RUN_TASK
from taskbridge.integration.app import app as package_app
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.testing.clock import InjectedClock, inject_clock
from taskbridge.worker import slot

__all__ = ["assert_notified", "deployment_of_test", "drain", "drain_all", "notified"]

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
    """Perform the tenant's runs in this process until its runner has ended. Return the number of runs.

    The gate, the cursor, the runs and the handler are real. Only the clock of the gate is not: it skips to each
    deadline, so the test does not wait for a lease, a delay, a back-off or a rate limit. A tenant that was not notified
    has no runner. Then there is no run, even if records are pending.

    Args:
        tenant: the tenant.
        pipeline: the pipeline.
        through_failures: if the handler raises, continue as workers do, until the records are handled or quarantined.
        most_runs: fail if the runner has not ended after this many runs.
        app: the Celery app, if it is not `taskbridge.app`.

    Raises:
        Exception: the error that the handler raised, unless `through_failures` is set. The next `drain` retries.
        AssertionError: the runner has not ended after `most_runs` runs, for example because the handler always raises
            `RetryAfter`.
        ConfigurationError: the test has no deployment of its own.
        InvalidName, UnknownPipeline, Unavailable: the same as for `taskbridge.notify_event`.
    """
    runtime = deployment_of_test(app)
    runtime.pipelines[pipeline]
    check_tenant(tenant)
    gate, runs = _clocked(runtime), 0
    while True:
        (status,) = gate.look(pipeline, [tenant])
        if status.state is State.IDLE:
            return runs
        if status.state is State.QUEUED and status.token is not None:
            if runs == most_runs:
                raise AssertionError(
                    f"tenant {tenant!r} of {pipeline!r} is not idle after {runs} runs: check whether its handler "
                    "always fails or asks for RetryAfter, whether it records what it receives, and whether it is paused"
                )
            runs += 1
            _run(runtime, pipeline, tenant, status.token, through_failures=through_failures)
            continue
        if status.deadline_ms is not None:
            gate.pass_to(status.deadline_ms)
        # If it expired early, a lingering runner would get another run.
        early = status.waits_for_turn or status.hold is Hold.PAUSED or status.deadline_ms is None
        gate.expire(pipeline, [tenant], early=early)


def drain_all(*, through_failures: bool = False, most_runs: int = MOST_RUNS, app: Celery = package_app) -> int:
    """Drain all notified tenants of all pipelines, including tenants that a run notifies. Return the number of runs.

    Arguments and errors are the same as for `drain`. `most_runs` applies to each tenant.
    """
    runtime, runs = deployment_of_test(app), 0
    while waiting := [(name, tenant) for name in runtime.pipelines.names() for tenant in runtime.gate.active(name)]:
        for pipeline, tenant in waiting:
            runs += drain(tenant, pipeline, through_failures=through_failures, most_runs=most_runs, app=app)
    return runs


def notified(pipeline: str = INVOICES, *, app: Celery = package_app) -> dict[str, int]:
    """Return the tenants that were notified since their last drain, each with the number of its events.

    Raises:
        ConfigurationError: the test has no deployment of its own.
        UnknownPipeline: no loaded module declares the pipeline.
    """
    runtime = deployment_of_test(app)
    runtime.pipelines[pipeline]
    tenants = runtime.gate.active(pipeline)
    return {tenant: status.events for tenant, status in zip(tenants, runtime.gate.look(pipeline, tenants), strict=True)}


def assert_notified(tenant: str, pipeline: str = INVOICES, *, app: Celery = package_app) -> None:
    """Fail unless the tenant was notified since its last drain.

    Raises:
        AssertionError: it was not notified. The message lists the notified tenants.
        ConfigurationError, UnknownPipeline: the same as for `notified`.
    """
    found = notified(pipeline, app=app)
    if tenant not in found:
        raise AssertionError(
            f"tenant {tenant!r} was not notified in the pipeline {pipeline!r}; "
            f"notified since the last drain: {', '.join(map(repr, found)) or 'nobody'}"
        )


def deployment_of_test(app: Celery) -> Runtime:
    """Return the runtime of a test's own deployment; any other one may belong to real tenants.

    Raises:
        ConfigurationError: the test has no deployment of its own.
    """
    runtime = runtime_of(app)
    if not runtime.runs_by_hand:
        raise ConfigurationError(
            "this test has no deployment of its own, so it would perform runs of the servers in the environment",
            'use the fixture `taskbridge_settings` of "taskbridge.testing.plugin", for example with '
            '`@pytest.mark.usefixtures("taskbridge_settings")`; in a Django TransactionTestCase use `deployed`',
        )
    # Events of a commit in a coroutine may still be in flight.
    wait(runtime.unsent, _SENT_WITHIN)
    return runtime


def _clocked(runtime: Runtime) -> InjectedClock:
    return runtime.gate if isinstance(runtime.gate, InjectedClock) else inject_clock(runtime)


def _run(runtime: Runtime, pipeline: str, tenant: str, token: str, *, through_failures: bool) -> None:
    # As in a worker, handlers find the app through `celery.current_task`.
    push_current_task(runtime.app.tasks[RUN_TASK])
    try:
        slot.run_tenant(runtime, pipeline, tenant, token)
    except Exception as error:
        if not through_failures:
            raise
        log.info("run of %s for tenant %r failed, and will be retried: %r", pipeline, tenant, error)
    finally:
        pop_current_task()
