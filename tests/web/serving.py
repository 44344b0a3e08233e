"""An app of a test, served as uvicorn serves it, and the pipelines that it knows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from tests.waiting import wait_until


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an app on a port of this machine; the address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the app listens")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def nothing(_: object) -> None:
    """Handle a batch."""


def declared(*names: str) -> Pipelines:
    """Pipelines of which each reads the source of its name."""
    pipelines = Pipelines()
    for name in names:
        pipelines.declare(Pipeline(name, nothing, LatencyNeutral(), 100))
    return pipelines
