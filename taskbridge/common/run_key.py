"""The key of a run, by which gate and store know it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RunKey"]


class RunKey(NamedTuple):
    """A run of a pipeline for a tenant. `token` is its fencing token, which no other run ever has."""

    pipeline: str
    tenant: str
    token: str
