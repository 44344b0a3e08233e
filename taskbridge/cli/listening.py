"""Check that a port is free before starting a server."""

from __future__ import annotations

import socket

from taskbridge.errors import ConfigurationError

__all__ = ["check_free"]


def check_free(host: str, port: int) -> None:
    """Raise ConfigurationError if the port cannot be used; 0 stands for any free port.

    uvicorn itself would only log an error, after logging that it has started.
    """
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.create_server(address[:2], family=family):
                pass
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of {host}: {error.strerror or error}",
            "choose another port with --port, or stop the program that uses it",
        ) from None
