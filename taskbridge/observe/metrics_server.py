"""A worker's port for Prometheus, on which `/healthz` also answers liveness probes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from celery import bootsteps

from taskbridge.common.libraries import explained_imports
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime, runtime_of, serves

__all__ = ["MetricsStep", "serve"]

STUCK_AFTER: Final = 120.0
"""Seconds without progress after which a thread of the worker is stuck: no server can keep it waiting for so long."""


def serve(runtime: Runtime) -> Callable[[], None]:
    """Serve this worker's metrics and `/healthz` over HTTP, and return a function that stops the server.

    Raises:
        ConfigurationError: the address and port cannot be used, or prometheus-client is not installed.
    """
    # Producers import this module too, but serve no metrics.
    with explained_imports():
        from prometheus_client import start_http_server  # noqa: PLC0415

        from taskbridge.observe import metrics  # noqa: PLC0415

    address, port = runtime.settings.metrics_address, runtime.settings.metrics_port
    try:
        server, _ = start_http_server(port, address, metrics.registry(metrics.Metrics(runtime, in_worker=True)))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"metrics cannot be served on {address}, port {port} ({error}): stop the program that uses it, or change "
            "TASKBRIDGE_METRICS_PORT or TASKBRIDGE_METRICS_ADDRESS; each worker on a machine needs its own port"
        ) from error
    server.set_app(_with_health(runtime, server.get_app()))

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end


def _with_health(runtime: Runtime, metrics_app: Any) -> Any:
    """Return a WSGI application that answers `/healthz`, and leaves other paths to `metrics_app`.

    The status is 200 as long as all threads of the worker make progress, whether or not the servers can be reached.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            return metrics_app(environ, start_response)  # type: ignore[no-any-return]
        now = time.monotonic()
        seconds = {name: round(now - at, 3) for name, at in sorted(runtime.progress.copy().items())}
        # Without any thread, the worker has not started them yet.
        is_healthy = bool(seconds) and max(seconds.values()) <= STUCK_AFTER
        start_response("200 OK" if is_healthy else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps({"healthy": is_healthy, "seconds_since_progress": seconds}).encode()]

    return answer


class MetricsStep(bootsteps.StartStopStep):
    """Serves metrics in the main process of a worker, if a port is configured."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._end: Callable[[], None] | None = None

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues, and a port is configured."""
        return serves(worker.app) and runtime_of(worker.app).settings.metrics_port != 0

    def start(self, worker: Any) -> None:
        """Start the server; if that fails, report why and end the worker."""
        try:
            self._end = serve(runtime_of(worker.app))
        except ConfigurationError as error:
            sys.stderr.write(f"taskbridge: {error}\n")
            raise SystemExit(error.exit_status) from None

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """Stop the server."""
        if self._end is not None:
            self._end()
            self._end = None

    def terminate(self, worker: Any) -> None:
        """Stop the server; Celery calls this in a cold shutdown."""
        self.stop(worker)
