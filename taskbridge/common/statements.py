"""SQL statements: named blocks in `.sql` files, each with a comment that describes it.

A block begins with `-- name: NAME` and ends where the next one begins.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["statements"]

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements(directory: Path) -> dict[str, str]:
    """Return the texts of all blocks in the files of a directory, by their names, without comment lines.

    Raises:
        ValueError: two blocks have the same name.
    """
    blocks: dict[str, str] = {}
    for file in sorted(directory.glob("*.sql")):
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in blocks:
                raise ValueError(f"{file}: there are two blocks named {name}")
            blocks[name] = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip("\n")
    return blocks
