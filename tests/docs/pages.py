"""What a page shows, in its order: files to save, commands of each shell, and what they print.

A fenced block is preceded by a comment that says what it is: `<!-- file: NAME -->`, `<!-- shell: NAME -->`,
`<!-- shell: NAME, until: TEXT -->` for commands that stay (TEXT says that they are ready), `<!-- prints -->` for lines
that the commands before print, or `<!-- not run: WHY -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^>]*?) -->\n)?^```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: what it is, of which name, until what its commands have to say, and its text."""

    kind: str
    name: str
    until: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; one without a comment has no kind."""
    found = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark, _, until = (block["mark"] or "").partition(", until: ")
        kind, _, name = mark.partition(": ")
        found.append(Block(kind, name, until, block["text"]))
    return found
