"""Whether a command can listen where it is asked to, before it starts anything."""

from __future__ import annotations

import socket

from taskbridge.errors import ConfigurationError

__all__ = ["check_free"]


def check_free(host: str, port: int) -> None:
    """Raise ConfigurationError where a server cannot listen on a port; 0 is any that is free.

    The server would say it in lines of a log, after it has said that it started.
    """
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.create_server(address[:2], family=family):
                pass
    except OSError as error:
        raise ConfigurationError(
            f"port {port} of {host} cannot be had: {error.strerror or error}",
            "choose another with --port, or end the program that has it",
        ) from None
