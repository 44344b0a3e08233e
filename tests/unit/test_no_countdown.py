"""The waiting lies in Redis and Postgres: a countdown would sit in a worker's memory until its visibility timeout."""

from __future__ import annotations

import re
from pathlib import Path

import taskbridge


def test_the_package_sends_no_message_with_a_countdown() -> None:
    package = Path(taskbridge.__file__).parent
    used = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"\b(countdown|eta)\s*=[^=]", path.read_text(encoding="utf-8"))
    ]
    assert used == []
