"""Django's sessions that TaskBridge has used and that must not be used again."""

from __future__ import annotations

from typing import Any

__all__ = ["disconnect"]


def disconnect(wrapper: Any) -> None:
    """Close a connection of Django's, unless a transaction is open. With `OPTIONS["pool"]` its pool is closed too.

    A pool keeps sessions as they are, and forks of a process would share their sockets. The next use opens new ones.
    """
    if wrapper.in_atomic_block:
        return
    wrapper.close()
    if close_pool := getattr(wrapper, "close_pool", None):
        close_pool()
