"""How tests read metrics: over HTTP as Prometheus does, with the parser of its own library."""

from __future__ import annotations

import secrets
import socket
import urllib.request
from contextlib import ExitStack
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from taskbridge.observe.metrics import METRICS

PARTS: Final = {"histogram": ("_bucket", "_sum", "_count")}
SAMPLES: Final = {one.name + part for one in METRICS for part in PARTS.get(one.kind, ("",))}
"""Every name that a query may use."""


def free_ports(count: int = 1, *, apart: int = 1) -> int:
    """Return the first of `count` ports, each higher by `apart` than the one before, that nobody uses.

    They lie below those that the system gives to connections, which would take one before it is used here.
    """
    while True:
        first = 10_000 + secrets.randbelow(22_000 - (count - 1) * apart)
        with ExitStack() as stack:
            try:
                for number in range(count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", first + number * apart))
            except OSError:
                continue
            return first


def reachable(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def scrape(port: int) -> dict[str, float]:
    """Return what is served there; see `samples`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return samples(answer.read().decode())


def samples(text: str, pipeline: str = "invoices") -> dict[str, float]:
    """Return the samples of one pipeline by name, with the bound of a bucket or another label after a space."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            assert set(one.labels) <= {"pipeline", "server", "queue", "state", "le"}
            if one.labels.get("pipeline", pipeline) == pipeline:
                after = [one.labels[name] for name in ("server", "queue", "state", "le") if name in one.labels]
                found[" ".join((one.name, *after))] = one.value
    return found
