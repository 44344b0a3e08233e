"""The addresses of several Redis servers, in one URL: those of a cluster, or a primary that Sentinel watches over.

`redis://:password@a:6379;redis://b:6379`: nodes of a cluster; all parameters are those of the first.

`sentinel://:password@s1:26379;sentinel://s2:26379/0?master_name=orders`: every server is a Sentinel, as in kombu's
URLs, and `master_name` is what they call the primary. User, password and database are those of the primary; a
password of the Sentinels themselves is the parameter `sentinel_password`. With any of the parameters of `rediss://`
that begin with `ssl_`, which kombu also reads, all connections use TLS, those to the Sentinels too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

__all__ = ["SENTINEL_PORT", "SentinelAddress", "node_urls", "stay"]

_SCHEME: Final = "sentinel"
SENTINEL_PORT: Final = 26379
SENTINEL_SECONDS: Final = 1.0
"""How long the broker's clients wait for an answer of each Sentinel."""
_PARAMETERS: Final = frozenset({"master_name", "sentinel_password"})
_TLS: Final = frozenset({"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"})

_VERIFIED: Final = ("required", "optional", "none")
"""Whether certificates are verified, as the values of `ssl_cert_reqs`."""

_NEXT_NODE: Final = re.compile(r";(?=rediss?://)")


def node_urls(url: str) -> list[str]:
    """Return the URLs of a cluster's nodes, or the URL of a single server."""
    return _NEXT_NODE.split(url)


def stay(urls: Sequence[str]) -> Iterator[str]:
    """The failover strategy of a connection to Sentinels: nothing changes, because the transport asks all of them.

    By default kombu would switch to the next URL, with its own transport and without the primary's password.
    """
    # A name without a scheme leaves all else as it was.
    return repeat(urlsplit(urls[0]).hostname or "localhost")


class SentinelAddress(NamedTuple):
    """The Sentinels as pairs of host and port, and what they watch over."""

    sentinels: tuple[tuple[str, int], ...]
    master_name: str
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_password: str | None = None
    tls: tuple[tuple[str, str], ...] = ()
    """The parameters for TLS; empty: it is not used."""

    @classmethod
    def of(cls, url: str) -> SentinelAddress | None:
        """Return the address in a URL; None if it is of another kind.

        Raises:
            ValueError: it cannot be read, lacks `master_name`, or has a parameter that is unknown here.
        """
        if not url.startswith(f"{_SCHEME}://"):
            return None
        parts = [urlsplit(text) for text in url.split(";")]
        given = dict(pair for part in parts for pair in parse_qsl(part.query, strict_parsing=bool(part.query)))
        tls = {name: text for name, text in given.items() if name in _TLS}
        if {part.scheme for part in parts} != {_SCHEME} or not given.get("master_name"):
            raise ValueError("not the URL of a Sentinel")
        if given.keys() - _PARAMETERS - _TLS or tls.get("ssl_cert_reqs", "required") not in _VERIFIED:
            raise ValueError("an unknown parameter, or value of one")
        return cls(
            tuple((part.hostname or "localhost", part.port or SENTINEL_PORT) for part in parts),
            given["master_name"],
            int(next((part.path for part in parts if part.path.strip("/")), "/0").strip("/")),
            next((unquote(part.username) for part in parts if part.username), None),
            next((unquote(part.password) for part in parts if part.password), None),
            given.get("sentinel_password"),
            tuple(tls.items()),
        )

    @property
    def tls_options(self) -> dict[str, Any]:
        """The options of redis-py for TLS, for connections to the primary and to Sentinels."""
        options: dict[str, Any] = {"ssl": True, **dict(self.tls)} if self.tls else {}
        if "ssl_check_hostname" in options:
            options["ssl_check_hostname"] = options["ssl_check_hostname"].lower() != "false"
        return options

    @property
    def broker_url(self) -> str:
        """The URL as kombu takes it, which has the rest in its options."""
        user, password = (quote(text or "", safe="") for text in (self.username, self.password))
        whose = f"{user}:{password}@" if user or password else ""
        first, *others = (f"{_bracketed(host)}:{port}" for host, port in self.sentinels)
        query = f"?{urlencode(self.tls)}" if self.tls else ""
        return ";".join([f"{_SCHEME}://{whose}{first}/{self.db}{query}", *(f"{_SCHEME}://{other}" for other in others)])

    @property
    def broker_options(self) -> dict[str, Any]:
        """The options of kombu's transport that belong to `broker_url`.

        Without its own timeouts, a Sentinel that accepts a connection and never answers would block the worker. By
        default, redis-py keeps trying for seconds if one cannot be reached, before the next one is asked.
        """
        from redis.backoff import NoBackoff  # noqa: PLC0415 - settings are read without redis-py
        from redis.retry import Retry  # noqa: PLC0415

        timeouts = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
        secret = {} if self.sentinel_password is None else {"password": self.sentinel_password}
        options = timeouts | secret | self.tls_options | {"retry": Retry(NoBackoff(), 0)}
        return {"master_name": self.master_name, "sentinel_kwargs": options}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
