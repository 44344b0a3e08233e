"""What is declared is what was tested: the lowest versions, and those of Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOWEST = Path(__file__).with_name("lowest.txt").read_text(encoding="utf-8")


def release(version: str) -> list[int]:
    """Return a version without the zeros at its end: 2.0 is 2.0.0."""
    numbers = [int(number) for number in version.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return numbers


def test_the_lowest_versions_that_are_allowed_are_those_that_are_tested() -> None:
    extras = PROJECT["optional-dependencies"]
    held = [one for one in extras["dev"] if one.startswith("asyncpg")]
    ranges = [*PROJECT["dependencies"], *extras["django"], *held]
    declared = {re.split(r"\W*\[|>=", one)[0]: one.rpartition(">=")[2] for one in ranges}
    pinned = {name.lower(): version for name, version in re.findall(r"^([\w-]+)==([\d.]+)$", LOWEST, re.MULTILINE)}
    assert {name: release(pinned[name]) for name in declared} == {
        name: release(version) for name, version in declared.items()
    }


def test_every_python_that_is_named_is_tried() -> None:
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    (tried,) = re.findall(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"python{version}" for version in named} == set(tried.split())
