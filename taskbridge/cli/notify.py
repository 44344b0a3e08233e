"""`taskbridge notify`: send an event."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, pipeline_option
from taskbridge.common.names import check_tenant
from taskbridge.errors import TaskBridgeError, Unavailable

__all__ = ["notify"]

_WORDS: Final = {
    "started": "started: the tenant was idle, and a run has been published",
    "delayed": "delayed: the tenant ran a moment ago, and the next run is scheduled",
    "absorbed": "absorbed: the tenant already has a runner, which also handles this event",
}


@click.command(epilog=examples("taskbridge notify France"))
@click.argument("tenant")
@pipeline_option
@data_dir_option
@json_option
def notify(tenant: str, pipeline: str, data_dir: Path, as_json: bool) -> None:
    """Send an event ("TENANT has new records") and print the answer.

    If the broker is unavailable, the exit status is 1, and workers publish the run later.
    """
    from taskbridge.common.server_errors import translated_errors
    from taskbridge.producer import notify as notifying

    check_tenant(tenant)
    runtime = environment.checked_runtime(data_dir, pipeline)
    answer = notifying.notify(runtime.app, tenant, pipeline).name.lower()
    if runtime.publisher.error is not None:
        try:
            with translated_errors():
                raise runtime.publisher.error
        except TaskBridgeError as error:
            raise Unavailable(
                f"{error}. The event has been counted: workers will publish the run when the broker is back"
            ) from error
    console.answer({"pipeline": pipeline, "tenant": tenant, "answer": answer}, _WORDS[answer], as_json=as_json)
