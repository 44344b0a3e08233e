"""Notify: from an event to a published run, in the producer's own process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery import Celery

from taskbridge.common.names import check_tenant
from taskbridge.declaring.pipeline import INVOICES, Pipeline
from taskbridge.gate import Answer, Spacing
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.process.translation import speaking_plainly

__all__ = ["notify", "notify_many", "start"]

EAGER = Spacing(delay=0)
"""Where tasks run inline no ticker acts on deadlines, so each event makes a run, which ends when nothing is new."""


def notify(app: Celery, tenant: str, pipeline: str = INVOICES, delay_ms: int | None = None) -> Answer:
    """Tell the tenant's runner that there are new records, and start it if there is none.

    One round trip to Redis, whatever the tenant's state. When this returns, the first event's run is published. In a
    pipeline with criteria `delay_ms` is the new record's delay; without it Postgres is asked for the smallest of those
    that wait.

    Raises:
        InvalidName: the tenant is not allowed.
        UnknownPipeline: no loaded module declares the pipeline.
        Unavailable: Redis cannot be used. The records are safe: workers find them all the same.
    """
    runtime = runtime_of(app)
    check_tenant(tenant)
    with speaking_plainly():
        declared = runtime.pipelines[pipeline]
        if runtime.eager:
            # No ticker acts on the deadline of a tenant that waits after a failure, so this does.
            runtime.gate.expire(pipeline, [tenant])
            return runtime.gate.notify(pipeline, tenant, EAGER)
        return runtime.gate.notify(pipeline, tenant, _spacing(runtime, declared, tenant, delay_ms))


def notify_many(app: Celery, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
    """Notify many tenants, in one round trip to Redis for each 500; a tenant may stand in the list several times.

    Raises: as `notify`. Nothing is sent when a tenant is not allowed.
    """
    runtime = runtime_of(app)
    checked = [check_tenant(tenant) for tenant in tenants]
    with speaking_plainly():
        declared = runtime.pipelines[pipeline]
        if runtime.eager:
            return [runtime.gate.notify(pipeline, tenant, EAGER) for tenant in checked]
        spacings = {tenant: _spacing(runtime, declared, tenant) for tenant in set(checked)}
        events = [(pipeline, tenant, spacings[tenant]) for tenant in checked]
        return runtime.gate.notify_many(events)


def start(app: Celery, tenants: Sequence[str], pipeline: str = INVOICES) -> None:
    """Notify the tenants, and let those that are held, by a back-off or a pause that is over, go on at once.

    Raises: as `notify`.
    """
    runtime = runtime_of(app)
    notify_many(app, tenants, pipeline)
    with speaking_plainly():
        runners = zip(tenants, runtime.gate.look(pipeline, tenants), strict=True)
        held = [tenant for tenant, runner in runners if runner.held]
        if held:
            runtime.gate.expire(pipeline, held, early=True)


def _spacing(runtime: Runtime, pipeline: Pipeline, tenant: str, delay_ms: int | None = None) -> Spacing:
    """Return how the tenant's next run is spaced.

    With criteria and without `delay_ms` Postgres is asked for the smallest delay of the records that wait.
    """
    if pipeline.criteria is None:
        return pipeline.policy.spacing
    if delay_ms is not None:
        return pipeline.criteria.spacing_for(delay_ms)
    waiting = runtime.tenants_of(pipeline.name).waiting(pipeline.name, tenant, pipeline.criteria.smallest_ms)
    return pipeline.policy.spacing if waiting is None else pipeline.criteria.spacing_for(waiting.delay_ms)
