"""`taskbridge notify`: send an event."""

from __future__ import annotations

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, pipeline_option
from taskbridge.common.names import check_tenant

__all__ = ["notify"]


@click.command(epilog=examples("taskbridge notify France"))
@click.argument("tenant")
@pipeline_option
@data_dir_option
@json_option
def notify(tenant: str, pipeline: str, as_json: bool) -> None:
    """Send an event ("TENANT has new records") and print the answer.

    If the broker is unavailable, the exit status is 1, and workers publish the run later.
    """
    from taskbridge.producer import notify as notifying

    check_tenant(tenant)
    runtime = environment.checked_runtime(pipeline)
    answer = notifying.notify(runtime.app, tenant, pipeline).name.lower()
    if runtime.publisher.error is not None:
        console.tell("The event has been counted: workers will publish the run when the broker is back.")
        raise runtime.publisher.error
    console.answer({"pipeline": pipeline, "tenant": tenant, "answer": answer}, answer, as_json=as_json)
