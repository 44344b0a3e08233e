"""The limits of names (length and characters) and of numbers (minimum and maximum). The docs print these tables."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from taskbridge.common.texts import as_json
from taskbridge.errors import InvalidPolicy

__all__ = ["NAMES", "OPTIONS", "SETTINGS", "Name", "Range", "check_option"]


class Name(NamedTuple):
    """A name has 1 to `longest` characters; `allowed` describes them, and `pattern` matches them where it is given."""

    longest: int
    allowed: str
    pattern: str = ""


class Range(NamedTuple):
    """A number is between `least` and `most`, inclusive; NaN is not."""

    least: float
    most: float
    unit: str = "s"

    def __str__(self) -> str:
        return f"between {self.least:.15g} and {self.most:.15g}{f' {self.unit}' if self.unit else ''}"

    def has(self, value: float) -> bool:
        """Whether `value` is in the range."""
        return self.least <= value <= self.most


_SHORT: Final = Name(63, "a-z, 0-9, '_' and '-', starting with a letter", "[a-z][a-z0-9_-]*")

NAMES: Final = {
    "tenant": Name(200, "any except control characters and line separators; no space at the start or the end"),
    "key": Name(200, "any except control characters and line separators"),
    "message id": Name(200, "any printable characters"),
    "pipeline": _SHORT,
    "source": _SHORT,
    "key prefix": Name(
        63,
        "A-Z, a-z, 0-9, '_', '.' and '-', starting with a letter or a digit; in braces for a Redis Cluster",
        r"[A-Za-z0-9][A-Za-z0-9_.-]*|\{[A-Za-z0-9][A-Za-z0-9_.-]*\}",
    ),
    "Redis name": Name(63, "a-z, 0-9 and '_', starting with a letter", "[a-z][a-z0-9_]*"),
    "schema": Name(
        63,
        "a-z, 0-9 and '_', starting with a letter or '_', but not with 'pg_'; not `public`",
        "(?!pg_|public$|information_schema$)[a-z_][a-z0-9_]*",
    ),
}

SETTINGS: Final = {
    "runner_ttl": Range(0.5, 3_600),
    "republish_after": Range(0.5, 3_600),
    "run_budget": Range(0.01, 3_600),
    "ticker_interval": Range(0.005, 1),
    "tail_interval": Range(0.02, 60),
    "base_interval": Range(0.1, 3_600),
    "notify_timeout": Range(0.01, 60),
    "statement_timeout": Range(0.5, 3_600),
    "transaction_timeout": Range(1, 86_400),
    "history_days": Range(0, 366, "days"),
    "metrics_port": Range(0, 65_535, ""),
}
"""Limits of `Settings`, by field name."""

OPTIONS: Final = {
    "batch_size": Range(1, 100_000, "records"),
    "max_attempts": Range(1, 1_000, ""),
    "max_runs": Range(0, 100_000, ""),
    "latency_budget": Range(0.001, 3_600),
    "soft_time_limit": Range(0.001, 86_400),
    "lease": Range(0, 3_600),
    "tick": Range(0.001, 3_600),
    "delay": Range(0.001, 30 * 86_400),
    "RetryAfter": Range(0, 86_400),
}
"""Limits of what a user declares, and of `RetryAfter`, whose seconds are clamped to the range instead of rejected."""


def check_option(what: str, option: str, value: Any, *, whole: bool = False) -> None:
    """Raise InvalidPolicy unless the value of an option is a number within its limits; `what` names it in messages."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InvalidPolicy(f"{what} is {as_json(value)}: give a {'whole' if whole else 'finite'} number")
    limits = OPTIONS[option]
    if not limits.has(value):
        given = f"{as_json(value)} {limits.unit}".rstrip()
        raise InvalidPolicy(f"{what} is {given}: it must lie {limits}")
