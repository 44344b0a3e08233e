"""`taskbridge serve`: serve a webhook receiver, or any other ASGI app, and `POST /events` with uvicorn."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from taskbridge.cli import environment
from taskbridge.cli.listening import check_free
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.settings import Settings

__all__ = ["app_named", "serve"]


@click.command(
    short_help="Serve a webhook receiver.",
    epilog=examples("taskbridge serve shop.webhooks:app --port 8080", "taskbridge serve"),
)
@click.argument("target", metavar="[MODULE:ATTRIBUTE]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="The port to listen on; 0 for any.",
)
@click.option("--access-log", is_flag=True, help="Log each request. This makes requests about 10% slower.")
@data_dir_option
def serve(target: str | None, host: str, port: int, access_log: bool, data_dir: Path) -> None:
    """Serve the webhook receiver MODULE:ATTRIBUTE, and POST /events if TASKBRIDGE_EVENTS_TOKENS is set.

    While Postgres is unavailable, the response is 503, so that senders try again.
    """
    import uvicorn

    environment.existing(data_dir)
    check_free(host, port)
    uvicorn.run(_app(target), host=host, port=port, access_log=access_log)


def _app(target: str | None) -> Any:
    from taskbridge.web.posting import events, with_events

    has_events = bool(Settings.read().events_tokens)
    if target is None:
        if not has_events:
            raise click.UsageError(
                "there is nothing to serve: give a MODULE:ATTRIBUTE, or set TASKBRIDGE_EVENTS_TOKENS for POST /events"
            )
        return events()
    app = app_named(target)
    return with_events(app) if has_events else app


def app_named(target: str) -> Any:
    """Return the ASGI app that MODULE:ATTRIBUTE names.

    Raises:
        click.UsageError: it does not have this form.
        ConfigurationError: the module cannot be imported, or has no such app.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{target!r} is not MODULE:ATTRIBUTE, such as shop.webhooks:app")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.append(directory)
    try:
        app = getattr(import_module(module), attribute, None)
    except TaskBridgeError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the module {module!r} cannot be imported ({type(error).__name__}: {error}): correct it, or its name"
        ) from error
    if not callable(app):
        raise ConfigurationError(
            f"{module}:{attribute} is not an ASGI app: name the object that `taskbridge.web.receiver` returned"
        )
    return app
