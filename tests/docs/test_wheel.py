"""An installed wheel works without the checkout: scripts, queries and migrations travel in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USE = """
from taskbridge.gate.scripts import SCRIPTS, render
from taskbridge.common.statements import statements
from taskbridge.store.queries import query
from taskbridge.store.schema import head, _migrations
import taskbridge, pathlib
assert all(render(script, "") for script in SCRIPTS.values())
queries = pathlib.Path(taskbridge.__file__).parent / "store" / "sql"
assert [query(name) for name in statements(queries)]
assert statements(pathlib.Path(taskbridge.__file__).parent / "embedded" / "sql")
newest = max(path.name for path in (_migrations() / "versions").glob("*.py"))
assert _migrations().name == "_migrations" and newest.startswith(head())
from taskbridge.web.pages.app import STATIC
from taskbridge.web.pages.rendering import Renderer
assert sorted(path.name for path in STATIC.iterdir()) == ["dashboard.css", "dashboard.js", "icon.svg"]
pages = Renderer()._templates
assert len([pages.get_template(name) for name in pages.list_templates()]) > 10
print(taskbridge.__file__)
"""


# The wheel is built once: all run in one process.
pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # -P: the current directory is not searched, so this is the wheel's code and nothing else's.
    used = subprocess.run(
        [sys.executable, "-P", "-c", USE],
        cwd=tmp_path.parent,
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert used.returncode == 0, used.stderr
    assert used.stdout.startswith(str(tmp_path))


def test_a_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
        (described,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        description = archive.read(described).decode()
    assert "\nName: celery-taskbridge\n" in description
    assert "\nProvides-Extra: embedded\n" in description
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"taskbridge"}
