"""`taskbridge notify`: one event."""

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
    "started": "started: the tenant was idle, and its run is published",
    "delayed": "delayed: the tenant's last run was a moment ago, and the next one is scheduled",
    "absorbed": "absorbed: the tenant has a runner, which handles this event as well",
}


@click.command(epilog=examples("taskbridge notify France"))
@click.argument("tenant")
@pipeline_option
@data_dir_option
@json_option
def notify(tenant: str, pipeline: str, data_dir: Path, as_json: bool) -> None:
    """Send one event: tell TENANT's runner that there are new records, and print the gate's answer.

    If the broker is away, workers publish the run when it is back, and the exit status is 1.
    """
    from taskbridge.common.server_errors import translated_errors
    from taskbridge.producer import notify as notifying

    check_tenant(tenant)
    environment.existing(data_dir)
    runtime = environment.runtime()
    answer = notifying.notify(runtime.app, tenant, pipeline).name.lower()
    if runtime.unpublished is not None:
        try:
            with translated_errors():
                raise runtime.unpublished
        except TaskBridgeError as error:
            raise Unavailable(
                f"{error}. The event is counted all the same: workers publish the run when the broker is back"
            ) from error
    console.answer({"pipeline": pipeline, "tenant": tenant, "answer": answer}, _WORDS[answer], as_json=as_json)
