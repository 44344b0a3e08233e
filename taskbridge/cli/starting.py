"""What an operator let go on is started at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from taskbridge.cli import environment
from taskbridge.errors import Unavailable

if TYPE_CHECKING:
    from taskbridge.store import Paused

__all__ = ["resume", "start"]


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


def resume(pending: Sequence[str], pipeline: str, tenant: str | None, left: Paused) -> None:
    """Start the tenants with `pending` records, and end what the pause holds of others.

    `tenant`: whose pause it was; None: the whole pipeline's. `left`: what is still paused.

    Raises: as `start`.
    """
    start(pending, pipeline)
    gate = environment.runtime().gate
    held = [one for one in gate.paused(pipeline) if tenant in (None, one) and left.holding(one) is None]
    gate.expire(pipeline, held, early=True)
