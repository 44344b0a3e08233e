"""The key that identifies a run in gate and store."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RunKey"]


class RunKey(NamedTuple):
    """A run of a pipeline for a tenant. `token` is its unique fencing token."""

    pipeline: str
    tenant: str
    token: str
