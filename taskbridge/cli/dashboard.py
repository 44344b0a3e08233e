"""`taskbridge dashboard`: serve the dashboard with uvicorn."""

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


@click.command(
    short_help="Serve the dashboard.",
    epilog=examples("taskbridge dashboard", "taskbridge dashboard --port 8010 --allow-actions"),
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8001,
    show_default=True,
    help="The port to listen on; 0 for any.",
)
@click.option("--allow-actions", is_flag=True, help="Allow users to pause, resume, notify, retry and discard.")
@click.option("--show-documents", is_flag=True, help="Show the documents of records.")
@data_dir_option
def dashboard(host: str, port: int, allow_actions: bool, show_documents: bool, data_dir: Path) -> None:
    """Serve web pages about health, tenants, records, failures and runs.

    To allow access from other machines, set TASKBRIDGE_DASHBOARD_PASSWORD. Users log in with any name.
    """
    import uvicorn

    if not Settings.read().dashboard_password and not _is_loopback(host):
        raise ConfigurationError(
            f"{host} is reachable from other machines, and there is no password",
            "set TASKBRIDGE_DASHBOARD_PASSWORD, or omit --host",
        )
    environment.existing(data_dir)
    check_free(host, port)
    from taskbridge.web.pages.app import dashboard as made

    uvicorn.run(
        made(actions=allow_actions, show_documents=show_documents),
        host=host,
        port=port,
        # Never trust a header about who sends a request: it could claim to be this machine.
        proxy_headers=False,
        server_header=False,
        # It would contain the names of tenants.
        access_log=False,
        timeout_graceful_shutdown=5,
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
