"""What is declared is what was tested: the lowest versions, and those of Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from verification.printing.printed import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = ("cli", "django", "otel", "web")
HELD = ("asyncpg", "cryptography", "psutil")
LOWEST = Path(__file__).with_name("lowest.txt").read_text(encoding="utf-8")


def release(version: str) -> list[int]:
    """Return a version without the zeros at its end: 2.0 is 2.0.0."""
    numbers = [int(number) for number in version.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return numbers


def declared() -> dict[str, list[int]]:
    """Return the lowest version of each library that pyproject.toml allows."""
    extras = PROJECT["optional-dependencies"]
    groups = PYPROJECT["dependency-groups"]
    held = [one for one in (*groups["test"], *extras["embedded"]) if one.startswith(HELD)]
    ranges = [*PROJECT["dependencies"], *held, *(one for extra in EXTRAS for one in extras[extra] if ">=" in one)]
    return {re.split(r"\W*\[|>=", one)[0]: release(one.rpartition(">=")[2]) for one in ranges}


def test_the_lowest_versions_that_are_allowed_are_those_that_are_tested() -> None:
    pinned = {name.lower(): version for name, version in re.findall(r"^([\w-]+)==([\d.]+)$", LOWEST, re.MULTILINE)}
    assert {name: release(pinned[name]) for name in declared()} == declared()


def test_the_page_names_the_lowest_version_of_each_library() -> None:
    page = (REFERENCE / "versions.md").read_text(encoding="utf-8")
    named = {
        name.lower(): release(version)
        for name, version in re.findall(r"^\| ([\w-]+)[^|]*\| ([\d.]+) \|$", page, re.MULTILINE)
    }
    assert named.pop("python") == release(PROJECT["requires-python"].removeprefix(">="))
    assert named == declared()


def test_every_python_that_is_named_is_tried() -> None:
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    (tried,) = re.findall(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"python{version}" for version in named} == set(tried.split())
