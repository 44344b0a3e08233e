"""Options of a broker with priorities, none of which is 0. They have a module of their own, which changes no app."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["OPTIONS"]

OPTIONS: Final[dict[str, Any]] = {"priority_steps": [1, 5, 9], "queue_order_strategy": "priority"}
