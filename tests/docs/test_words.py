"""Words that were given up stay away: what they meant has one name now, which the glossary or the field has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("taskbridge", "benchmarks", "tests", "docs", "migrations", "examples")
READ = (".py", ".md", ".sql", ".lua", ".json", ".toml")
# Each with what is said instead. What was released or migrated stays as it was.
RETIRED = {
    r"hand(s|ed|ing)?[ _-]over|handover": "deliver",
    r"(?<![a-z])aside(?![a-z])": "put into quarantine, or stored as unmatched",
    r"narrowing": "bisection",
    r"outrank": "stale token",
    r"(?<![a-z])(stands?|standing|waits?|tenants?)[ _]in[ _](the[ _])?line(?![a-z])": "wait queue",
    r"head[ _]of[ _](the[ _])?line(?![a-z])": "the first in the wait queue",
    r"(?<![a-z])(free|no)[ _]place(?![a-z])": "run slot",
    r"patience": "time-out, grace, back-off, or what it is",
    r"(?<![a-z])watch(ing|er)(?![a-z])": "monitor",
    r"(?<![a-z])screens?(?![a-z])": "console",
    r"(?<![a-z])moments(?![a-z])": "times",
    r"setback": "failure",
    r"surroundings": "environment",
    r"forgotten tenants|forgotten_tenants": "orphaned",
}
# What others know by this name: a metric and a field of `status --json`, and a field of Redis that an older worker
# reads while a deployment is updated.
KNOWN_OUTSIDE = re.compile(r"(taskbridge_)?tenants_in_line|[\"`]patience[\"`]")
HISTORY = ("CHANGELOG.md", "migrations/versions/", "tests/docs/test_words.py")


# The files are read once: all run in one process.
pytestmark = pytest.mark.xdist_group("words")


@cache
def texts() -> list[tuple[str, str]]:
    """Return each file that is read, with its text in small letters: to search that is quicker than to ignore case."""
    places = [path for name in PLACES for path in (ROOT / name).rglob("*")] + [
        *ROOT.glob("*.md"),
        ROOT / "pyproject.toml",
    ]
    chosen = [path for path in places if path.suffix in READ and "__pycache__" not in path.parts]
    return [
        (place, KNOWN_OUTSIDE.sub("", path.read_text(encoding="utf-8", errors="replace")).lower())
        for path in chosen
        if not (place := str(path.relative_to(ROOT))).startswith(HISTORY)
    ]


@pytest.mark.parametrize(("retired", "instead"), RETIRED.items())
def test_no_retired_word_is_left(retired: str, instead: str) -> None:
    word = re.compile(retired)
    found = [
        f"{place}:{number}: {line.strip()}"
        for place, text in texts()
        if word.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if word.search(line)
    ]
    assert found == [], f"say {instead!r}"
