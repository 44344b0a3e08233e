"""The network layer of an HTTP client that restricts where a request may go.

It resolves a name once and connects to an address that it has checked, because resolving the name again could return
another address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import anyio
import httpcore2

__all__ = ["Forbidden", "Network", "is_public"]

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


class Network(httpcore2.AnyIOBackend):
    """Opens connections, only to public addresses unless `allow_private` is set."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of a name that accepts the connection, all within `timeout`.

        Each address gets an equal share of the time that is left, so that an unresponsive one does not use it up.

        Raises:
            Forbidden: none of its addresses is allowed.
        """
        with anyio.move_on_after(timeout) as scope:
            addresses = await _addresses(host, port)
            allowed = [one for one in addresses if self._allow_private or is_public(one)]
            if not allowed:
                raise Forbidden(
                    f"{host} has no public address: for endpoints in your own network use allow_private=True"
                )
            for left in range(len(allowed), 0, -1):
                share = (scope.deadline - anyio.current_time()) / left
                try:
                    return await super().connect_tcp(allowed[-left], port, share, local_address, socket_options)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                    if left == 1:
                        raise
        raise httpcore2.ConnectTimeout("resolving the name or connecting took too long")


async def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a name.

    The resolver has its own timeouts and cannot be interrupted, so it runs in a thread, which may outlive this call.
    """
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        # With a limit of its own: names that resolve slowly must not delay those of other tenants.
        found = await anyio.to_thread.run_sync(resolve, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"the name cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(where[0]) for *_, where in found))
