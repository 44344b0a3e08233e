"""Statements of SQL: each is a file, whose first lines say what it is for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["statement"]


@cache
def statement(directory: Path, name: str) -> str:
    """Return the text of a file without its comments that are lines of their own."""
    text = directory.joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))
