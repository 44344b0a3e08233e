"""Check that a port is free before anything is started."""

from __future__ import annotations

import socket

from taskbridge.errors import ConfigurationError

__all__ = ["check_free"]


def check_free(host: str, port: int) -> None:
    """Raise ConfigurationError if a server cannot listen on a port; 0 is any free port.

    The server itself would only log it, after it has said that it started.
    """
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.create_server(address[:2], family=family):
                pass
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of {host}: {error.strerror or error}",
            "choose another with --port, or stop the program that uses it",
        ) from None
