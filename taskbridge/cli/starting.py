"""What an operator let go on is started at once."""

from __future__ import annotations

from collections.abc import Sequence

from taskbridge.cli import console, environment
from taskbridge.cli.environment import Origin
from taskbridge.errors import Unavailable

__all__ = ["start"]


def start(tenants: Sequence[str], pipeline: str, origin: Origin) -> None:
    """Start the tenants' runners.

    Raises:
        Unavailable: Redis cannot be used; the message says that nothing is lost.
    """
    from taskbridge.producing import notify

    try:
        notify.start(environment.runtime().app, tenants, pipeline)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. It is written down all the same: workers find it within TASKBRIDGE_BASE_INTERVAL"
        ) from error
    if origin is Origin.OURS and tenants:
        console.tell("No worker runs yet: `taskbridge up` handles what is pending.")
