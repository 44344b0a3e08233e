"""The network layer of an HTTP client that restricts where a request may go and how long it may take.

It resolves a name once and connects to an address that it has checked, because resolving the name again could return
another address. The timeouts of its requests are points in time, so that each step gets what is left of the whole.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final

import httpcore2

__all__ = ["Forbidden", "Network", "is_public", "timeouts"]

PART: Final = 65_536
"""How many bytes are written with one timeout."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL: Final = "192.0.0.0/24 192.88.99.0/24 168.63.129.16/32 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16"
_NOT_PUBLIC: Final = tuple(ipaddress.ip_network(text) for text in _SPECIAL.split())
"""From IANA's special registries and a cloud's own, because Python's list differs between versions."""


class Forbidden(ConnectionError):
    """A name has no public address."""


def is_public(text: str) -> bool:
    """Whether an address is public; if it contains an IPv4 address, that must be public, too."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        if address not in _GLOBAL:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


def timeouts(connect: float, whole: float) -> dict[str, float]:
    """Return the timeouts of a request on a `Network` that begins now, for the request's extension `timeout`."""
    now = time.monotonic()
    return {"connect": now + min(connect, whole), "read": now + whole, "write": now + whole, "pool": whole}


def _left(timeout: float | None) -> float:
    """Return how many seconds are left.

    Raises:
        TimeoutError: none.
    """
    assert timeout is not None  # noqa: S101 - requests have `timeouts`
    if (left := timeout - time.monotonic()) <= 0:
        raise httpcore2.ReadTimeout("the request took too long")
    return left


class Network(httpcore2.NetworkBackend):
    """Opens connections, only to public addresses unless `allow_private` is set. Requests need `timeouts`."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address of a name that accepts the connection.

        Each address gets an equal share of the time until `timeout`, so that an unresponsive one does not use it up.

        Raises:
            Forbidden: none of its addresses is allowed.
        """
        addresses = _addresses(host, port, _left(timeout))
        allowed = [one for one in addresses if self._allow_private or is_public(one)]
        if not allowed:
            raise Forbidden(f"{host} has no public address: for endpoints in your own network use allow_private=True")
        for at, address in enumerate(allowed):
            share = _left(timeout) / (len(allowed) - at)
            try:
                return _Stream(self._sockets.connect_tcp(address, port, share, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if at == len(allowed) - 1:
                    raise
        raise AssertionError


def _addresses(host: str, port: int, timeout: float) -> list[str]:
    """Return the addresses of a name.

    The resolver has its own timeouts and cannot be interrupted, so it runs in a thread, which may outlive this call.
    """
    found = Future[list[str]]()

    def resolve() -> None:
        try:
            answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.set_result(list(dict.fromkeys(str(where[0]) for *_, where in answer)))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=resolve, name="taskbridge-resolver", daemon=True).start()
    try:
        return found.result(timeout)
    except TimeoutError:
        raise httpcore2.ConnectTimeout("resolving the name took too long") from None
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"the name cannot be resolved: {error}") from error


class _Stream(httpcore2.NetworkStream):
    """A connection; its timeouts are points in time."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read."""
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write."""
        # In parts, so that a slow reader cannot exceed the deadline.
        for at in range(0, len(buffer), PART):
            self._stream.write(buffer[at : at + PART], _left(timeout))

    def close(self) -> None:
        """Close."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Start TLS, and verify the name rather than the address."""
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection."""
        return self._stream.get_extra_info(info)
