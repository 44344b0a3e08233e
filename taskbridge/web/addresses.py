"""Where a request may go, and how long it may take: the network below an HTTP client.

A name is resolved here, and the connection goes to an address that was looked at: what is resolved a second time may be
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
"""Bytes that are written with one time-out."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL: Final = "192.0.0.0/24 192.88.99.0/24 168.63.129.16/32 2001::/23 2001:db8::/32 3fff::/20 5f00::/16"
_NOT_PUBLIC: Final = tuple(ipaddress.ip_network(text) for text in _SPECIAL.split())
"""Beside what Python knows, which differs between its versions: from IANA's special registries, and a cloud's own."""
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
"""Where these stand in front of an address of IPv4, an address of IPv6 stands for it."""


class Forbidden(ConnectionError):
    """A name has no address that is public."""


class _Time(threading.local):
    ends = math.inf

    def left(self, given: float | None) -> float | None:
        """Return the seconds of the next step.

        Raises:
            TimeoutError: there are none.
        """
        left = min(self.ends - time.monotonic(), math.inf if given is None else given)
        if left <= 0:
            raise httpcore2.ReadTimeout("the time for the request is over")
        return None if left == math.inf else left


_time: Final = _Time()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Give this thread so many seconds for all that it does on a `Network` in the block."""
    _time.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _time.ends = math.inf


def is_public(text: str) -> bool:
    """Whether an address is one of the public Internet, also where it stands for one of IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.ipv4_mapped is not None or address in _NAT64:
            return is_public(str(last))
        if address not in _GLOBAL or address.teredo is not None:
            return False
        if address.sixtofour is not None and not is_public(str(address.sixtofour)):
            return False
        if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(str(last)):
            return False
    if any(address in network for network in _NOT_PUBLIC if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast


class Network(httpcore2.NetworkBackend):
    """Opens connections within the `deadline` of the block around, to public addresses unless others are allowed."""

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
        """Connect to the first address of a name that takes the connection.

        `timeout` is for the name and all its addresses together. Each address has an equal share of what is left, so
        one that is silent does not keep the others from being tried.

        Raises:
            Forbidden: none of its addresses is allowed.
        """
        ends = min(_time.ends, time.monotonic() + (math.inf if timeout is None else timeout))
        addresses = _addresses(host, port, _time.left(timeout))
        allowed = [one for one in addresses if self._allow_private or is_public(one)]
        if not allowed:
            raise Forbidden(f"{host} has no public address: for endpoints of your own network say allow_private=True")
        for at, address in enumerate(allowed):
            share = _time.left((ends - time.monotonic()) / (len(allowed) - at))
            try:
                return _Stream(self._sockets.connect_tcp(address, port, share, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if at == len(allowed) - 1:
                    raise
        raise AssertionError

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.NetworkStream:
        """Refuse: there is no such URL."""
        raise NotImplementedError


def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
    """Return the addresses of a name.

    The resolver has time-outs of its own and cannot be interrupted, so a thread asks it, which may go on for longer.
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
        raise httpcore2.ConnectTimeout("the name is not resolved in time") from None
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"the name cannot be resolved: {error}") from error


class _Stream(httpcore2.NetworkStream):
    """A connection, each step of which has what is left of the time."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read."""
        return self._stream.read(max_bytes, _time.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write."""
        # Each part has what is left by then: whoever reads slowly takes a little at a time.
        for at in range(0, len(buffer), PART):
            self._stream.write(buffer[at : at + PART], _time.left(timeout))

    def close(self) -> None:
        """Close."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Go on under TLS, for the name and not for its address."""
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _time.left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the connection."""
        return self._stream.get_extra_info(info)
