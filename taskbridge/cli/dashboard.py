"""`taskbridge dashboard`: pages that answer what operators ask, under uvicorn."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import click

from taskbridge.cli import environment
from taskbridge.cli.listening import check_free
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.errors import ConfigurationError
from taskbridge.settings import Settings

__all__ = ["dashboard"]


@click.command(epilog=examples("taskbridge dashboard", "taskbridge dashboard --port 8010 --allow-actions"))
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address on which to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8001, show_default=True, help="The port; 0: any that is free."
)
@click.option("--allow-actions", is_flag=True, help="Let people pause, resume, notify, retry and discard.")
@click.option("--show-documents", is_flag=True, help="Show the documents of records.")
@data_dir_option
def dashboard(host: str, port: int, allow_actions: bool, show_documents: bool, data_dir: Path) -> None:
    """Serve the dashboard: health, tenants, records, failures and runs as pages.

    Without TASKBRIDGE_DASHBOARD_PASSWORD it answers this machine only; with it any user name goes into the audit.
    """
    import uvicorn

    if not Settings.read().dashboard_password and not _is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and there is no password",
            "set TASKBRIDGE_DASHBOARD_PASSWORD, or leave out --host",
        )
    environment.existing(data_dir)
    check_free(host, port)
    from taskbridge.web.pages.app import dashboard as made

    config = uvicorn.Config(
        made(actions=allow_actions, show_documents=show_documents),
        host=host,
        port=port,
        # Who sends a request is who connects: a header could name this machine.
        proxy_headers=False,
        server_header=False,
        # It would have the names of tenants.
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
