"""`taskbridge serve` and `taskbridge dashboard`: serve a webhook receiver, or the dashboard, with uvicorn."""

from __future__ import annotations

import ipaddress
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from taskbridge.cli import environment
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.errors import ConfigurationError
from taskbridge.settings import Settings

__all__ = ["dashboard", "serve"]

_host_option = click.option("--host", default="127.0.0.1", metavar="HOST", help="The address to listen on.")
_port_option = partial(click.option, "--port", type=click.IntRange(0, 65_535), help="The port to listen on; 0 for any.")


@click.command(epilog=examples("taskbridge serve shop.webhooks:app --port 8080", "taskbridge serve"))
@click.argument("target", metavar="[MODULE:ATTRIBUTE]", required=False)
@_host_option
@_port_option(default=8000)
@click.option("--access-log", is_flag=True, help="Log each request. This makes requests about 10% slower.")
@data_dir_option
def serve(target: str | None, host: str, port: int, access_log: bool) -> None:
    """Serve the webhook receiver MODULE:ATTRIBUTE. With TASKBRIDGE_EVENTS_TOKENS, serve POST /events, too.

    While Postgres is unavailable, the response is 503, so that senders try again.
    """
    import uvicorn

    environment.existing()
    _check_free(host, port)
    uvicorn.run(_app(target), host=host, port=port, access_log=access_log)


def _app(target: str | None) -> Any:
    from uvicorn.importer import ImportFromStringError, import_from_string

    from taskbridge.web.posting import events, with_events

    has_events = bool(Settings.read().events_tokens)
    if target is None:
        if not has_events:
            raise click.UsageError(
                "there is nothing to serve: give a MODULE:ATTRIBUTE, or set TASKBRIDGE_EVENTS_TOKENS for POST /events"
            )
        return events()
    sys.path.append(str(Path.cwd()))
    try:
        app = import_from_string(target)
    except ImportFromStringError as error:
        raise click.UsageError(str(error)) from error
    return with_events(app) if has_events else app


@click.command(epilog=examples("taskbridge dashboard", "taskbridge dashboard --port 8010 --allow-actions"))
@_host_option
@_port_option(default=8001)
@click.option("--allow-actions", is_flag=True, help="Allow users to pause, resume, notify, retry and discard.")
@click.option("--show-documents", is_flag=True, help="Show the documents of records.")
@data_dir_option
def dashboard(host: str, port: int, allow_actions: bool, show_documents: bool) -> None:
    """Serve the dashboard. Its pages show health, tenants, records, failures and runs.

    To allow access from other machines, set TASKBRIDGE_DASHBOARD_PASSWORD. Users log in with any name.
    """
    import uvicorn

    if not Settings.read().dashboard_password and not _is_loopback(host):
        raise ConfigurationError(
            f"{host} is reachable from other machines, and there is no password",
            "set TASKBRIDGE_DASHBOARD_PASSWORD, or omit --host",
        )
    environment.existing()
    _check_free(host, port)
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


def _check_free(host: str, port: int) -> None:
    """Raise ConfigurationError if the port cannot be used: uvicorn would log it after starting the app."""
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of {host}: {error.strerror or error}",
            "choose another port with --port, or stop the program that uses it",
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
