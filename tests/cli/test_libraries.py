"""A library that is too old is named, with what to install, before anything imports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import MAIN, ROOT, Program

NEEDED = {
    "celery": ("5.3.6", "celery[redis]>=5.4"),
    "SQLAlchemy": ("1.4.50", "sqlalchemy>=2.0.22"),
    "redis": ("4.6.0", "redis[hiredis]>=5.0.1"),
}


def text(name: str) -> str:
    old, needed = NEEDED[name]
    wrong = f"{name.lower()} {old} is too old (TaskBridge needs {needed.partition('>=')[2]} or newer)"
    return f"{wrong}: run `pip install --upgrade '{needed}'`"


def install(directory: Path, name: str, version: str) -> None:
    """Install a library of this version as pip notes it, whose import fails as that of an old one does."""
    noted = directory / f"{name}-{version}.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (directory / f"{name.lower()}.py").write_text("raise ImportError('as with an old one')\n")


@pytest.mark.parametrize(("name", "command"), [("celery", "doctor"), ("SQLAlchemy", "status")])
def test_a_command_names_the_library_that_is_too_old(name: str, command: str, bare: Program) -> None:
    install(bare.directory, name, NEEDED[name][0])
    ended = bare.python("-c", MAIN, command, PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"taskbridge: {text(name)}\n")


def test_a_producer_gets_the_same_sentence_as_an_error(bare: Program) -> None:
    install(bare.directory, "redis", NEEDED["redis"][0])
    ended = bare.python("-c", "import taskbridge; taskbridge.notify", PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert ended.stderr.splitlines()[-1] == f"taskbridge.errors.ConfigurationError: {text('redis')}"


def test_the_lowest_versions_and_unusual_numbers_are_taken(bare: Program) -> None:
    for name, version in {"celery": "5.4", "kombu": "5.10.0rc1", "redis": "5.0.1.0", "psycopg": "10.0"}.items():
        install(bare.directory, name, version)
    script = "from taskbridge.common.libraries import check_libraries; check_libraries()"
    ended = bare.python("-c", script, PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert ended.returncode == 0, ended.stderr
