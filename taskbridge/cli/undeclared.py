"""Pipelines that Postgres knows and this process does not declare: no command may deny what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskbridge.cli import console
from taskbridge.observing.troubles import undeclared
from taskbridge.store import Looks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskbridge.process.light_runtime import LightRuntime

__all__ = ["as_json", "look", "sentence", "tell"]


def look(runtime: LightRuntime) -> dict[str, int]:
    """Return how many tenants each of them has."""
    return Looks(runtime.database).undeclared(runtime.pipelines.names())


def sentence(found: Mapping[str, int]) -> str:
    """Say which they are, and what to do."""
    one = undeclared(found)
    return f"{one.sentence}; {one.remedy}"


def tell(runtime: LightRuntime) -> None:
    """Say on stderr which they are, if there are any."""
    if found := look(runtime):
        console.tell(sentence(found))


def as_json(runtime: LightRuntime) -> dict[str, Any]:
    """Return what a command's JSON has of them: nothing, where there are none."""
    found = look(runtime)
    return {"undeclared": found} if found else {}
