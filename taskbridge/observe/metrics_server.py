"""A worker's port for Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from taskbridge.common.libraries import explained_imports
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime, runtime_of, serves

__all__ = ["MetricsStep", "serve"]


def serve(runtime: Runtime) -> Callable[[], None]:
    """Serve this worker's metrics over HTTP at the address and port of its settings; return a function that ends it.

    Raises:
        ConfigurationError: they cannot be used, or prometheus-client is not installed.
    """
    # A producer imports this module with the app, and serves nothing.
    with explained_imports():
        from prometheus_client import start_http_server  # noqa: PLC0415

        from taskbridge.observe import metrics  # noqa: PLC0415

    address, port = runtime.settings.metrics_address, runtime.settings.metrics_port
    try:
        server, _ = start_http_server(port, address, metrics.registry(metrics.Metrics(runtime, runtime)))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"metrics cannot be served on {address}, port {port} ({error}): end what uses it, or correct "
            "TASKBRIDGE_METRICS_PORT and TASKBRIDGE_METRICS_ADDRESS; each worker of a machine needs a port of its own"
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end


class MetricsStep(bootsteps.StartStopStep):
    """Serves metrics in the main process of a worker, if a port is set."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._end: Callable[[], None] | None = None

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues, and a port is set."""
        return serves(worker.app) and runtime_of(worker.app).settings.metrics_port != 0

    def start(self, worker: Any) -> None:
        """Serve; where that is not possible, say why and end the worker."""
        try:
            self._end = serve(runtime_of(worker.app))
        except ConfigurationError as error:
            sys.stderr.write(f"taskbridge: {error}\n")
            raise SystemExit(error.exit_status) from None

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """Serve no longer."""
        if self._end is not None:
            self._end()
            self._end = None

    def terminate(self, worker: Any) -> None:
        """Serve no longer; Celery calls this in a cold shutdown."""
        self.stop(worker)
