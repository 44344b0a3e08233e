"""Words that were given up stay away: what they meant has one name now, which the glossary or the field has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("taskbridge", "benchmarks", "tests", "docs", "migrations", "examples")
READ = (".py", ".md", ".sql", ".lua", ".json", ".toml")
# Each with what is said instead. What was released or migrated stays as it was.
RETIRED = {
    r"hand(s|ed|ing)?[ _-]over|handover": "deliver",
    r"set(s|ting)?[ _]aside": "put into quarantine, or stored as unmatched",
    r"narrowing": "bisection",
    r"outrank": "stale token",
    r"setback": "failure",
    r"surroundings": "environment",
    r"forgotten tenants|forgotten_tenants": "orphaned",
}
HISTORY = ("CHANGELOG.md", "migrations/versions/", "tests/docs/test_words.py")


def files() -> list[Path]:
    places = [path for name in PLACES for path in (ROOT / name).rglob("*")] + [
        *ROOT.glob("*.md"),
        ROOT / "pyproject.toml",
    ]
    chosen = [path for path in places if path.suffix in READ and "__pycache__" not in path.parts]
    return [path for path in chosen if not str(path.relative_to(ROOT)).startswith(HISTORY)]


@pytest.mark.parametrize(("retired", "instead"), RETIRED.items())
def test_no_retired_word_is_left(retired: str, instead: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if re.search(retired, line, re.IGNORECASE)
    ]
    assert found == [], f"say {instead!r}"
