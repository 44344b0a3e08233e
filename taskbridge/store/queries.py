"""The named queries: one `.sql` file each, whose comment says what it is for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["query"]


@cache
def query(name: str) -> str:
    """Return the text of `sql/{name}.sql`, with psycopg's `%(name)s` placeholders."""
    text = files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))
