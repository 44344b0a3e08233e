"""What an operator let go on is started at once."""

from __future__ import annotations

from collections.abc import Sequence

from taskbridge.cli import environment
from taskbridge.errors import Unavailable

__all__ = ["start"]


def start(tenants: Sequence[str], pipeline: str) -> None:
    """Start the tenants' runners.

    Raises:
        Unavailable: Redis cannot be used; the message says that nothing is lost.
    """
    from taskbridge.producing import notify

    try:
        notify.start(environment.runtime().app, tenants, pipeline)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. It is written down all the same: a base round finds it (TASKBRIDGE_BASE_INTERVAL)"
        ) from error
