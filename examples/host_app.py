"""A Celery app with its own tasks and TaskBridge: one worker serves both.

With your own Postgres and Redis, from the root of the checkout:

    export TASKBRIDGE_POSTGRES_URL=postgresql://... TASKBRIDGE_REDIS_URL=redis://... BROKER=redis://...
    export TASKBRIDGE_PIPELINES=examples.host_app
    taskbridge migrate
    celery -A examples.host_app worker --loglevel INFO

and from a second shell with the same variables:

    python -c "from examples.host_app import save; save('France', '536365', {'total': '74.25'})"
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery

import taskbridge
from taskbridge.handlers.journal import journal

log = logging.getLogger(__name__)

app = Celery("shop", broker=os.environ.get("BROKER", "redis://127.0.0.1:6379/1"))
bridge = taskbridge.install(app)


@app.task
def mail(tenant: str, count: int) -> None:
    """Stand for a task that the app had already; it goes through the app's own default queue."""
    log.info("mail: %s has %d new invoices", tenant, count)


@taskbridge.pipeline("invoices")
def sync_invoices(batch: taskbridge.Batch) -> None:
    """Handle a tenant's invoices together, and let the app's own task report them."""
    journal(batch)
    mail.delay(batch.tenant, len(batch))


def save(tenant: str, number: str, document: dict[str, Any]) -> None:
    """Do what a webhook does: commit, then notify."""
    if bridge.record_invoice(tenant, number, document):
        bridge.notify_event.delay(tenant)
