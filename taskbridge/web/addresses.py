"""The network layer of an HTTP client that restricts where a request may go and how long it may take.

It resolves a name once and connects to an address that it has checked, because resolving the name again could return
another address.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

import httpcore2

__all__ = ["Forbidden", "Network", "deadline", "is_public"]

PART: Final = 65_536
"""How many bytes are written with one timeout."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL: Final = "192.0.0.0/24 192.88.99.0/24 168.63.129.16/32 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16"
_NOT_PUBLIC: Final = tuple(ipaddress.ip_network(text) for text in _SPECIAL.split())
"""From IANA's special registries and a cloud's own, because Python's list differs between versions."""


class Forbidden(ConnectionError):
    """A name has no public address."""


class _Time(threading.local):
    ends = math.inf

    def left(self, given: float | None) -> float | None:
        """Return the timeout of the next step.

        Raises:
            TimeoutError: no time is left.
        """
        left = min(self.ends - time.monotonic(), math.inf if given is None else given)
        if left <= 0:
            raise httpcore2.ReadTimeout("the request took too long")
        return None if left == math.inf else left


_time: Final = _Time()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit everything that this thread does on a `Network` in the block to this many seconds."""
    _time.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _time.ends = math.inf


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


class Network(httpcore2.NetworkBackend):
    """Opens connections within the current `deadline`, only to public addresses unless `allow_private` is set."""

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

        `timeout` covers resolving the name and trying all addresses. Each address gets an equal share of the remaining
        time, so that an unresponsive one does not use it up.

        Raises:
            Forbidden: none of its addresses is allowed.
        """
        ends = min(_time.ends, time.monotonic() + (math.inf if timeout is None else timeout))
        addresses = _addresses(host, port, _time.left(timeout))
        allowed = [one for one in addresses if self._allow_private or is_public(one)]
        if not allowed:
            raise Forbidden(f"{host} has no public address: for endpoints in your own network use allow_private=True")
        for at, address in enumerate(allowed):
            share = _time.left((ends - time.monotonic()) / (len(allowed) - at))
            try:
                return _Stream(self._sockets.connect_tcp(address, port, share, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if at == len(allowed) - 1:
                    raise
        raise AssertionError


def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
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
    """A connection whose operations share the remaining time."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read."""
        return self._stream.read(max_bytes, _time.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write."""
        # In parts, so that a slow reader cannot exceed the deadline.
        for at in range(0, len(buffer), PART):
            self._stream.write(buffer[at : at + PART], _time.left(timeout))

    def close(self) -> None:
        """Close."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Start TLS, and verify the name rather than the address."""
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _time.left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection."""
        return self._stream.get_extra_info(info)
