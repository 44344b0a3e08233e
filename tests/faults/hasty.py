"""The usual pipelines, in workers whose watch of the broker ends as soon as it may."""

from __future__ import annotations

from taskbridge.integration import broker_watch
from tests import pipelines

__all__ = ["pipelines"]

broker_watch.__dict__["CLOSES_WITHIN"] = 0.0
