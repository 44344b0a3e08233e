"""An installed wheel works without the checkout: scripts, queries and migrations travel in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.ending import ended

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
assert statements(pathlib.Path(taskbridge.__file__).parent / "testing" / "sql")
newest = max(path.name for path in (_migrations() / "versions").glob("*.py"))
assert _migrations().name == "_migrations" and newest.startswith(head())
from taskbridge.web.pages.app import STATIC
from taskbridge.web.pages.rendering import TEMPLATES
assert sorted(path.name for path in STATIC.iterdir()) == ["dashboard.css", "dashboard.js", "icon.svg"]
pages = TEMPLATES
assert len([pages.get_template(name) for name in pages.list_templates()]) > 8
print(taskbridge.__file__)
"""


def test_a_wheel_holds_the_package_and_nothing_else_and_works_without_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "there")
    (described,) = (tmp_path / "there").glob("*.dist-info")
    description = (described / "METADATA").read_text()
    assert "\nName: celery-taskbridge\n" in description
    assert "\nProvides-Extra: embedded\n" in description
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"taskbridge", described.name}
    # -P: the current directory is not searched, so this is the wheel's code and nothing else's.
    used = ended([sys.executable, "-P", "-c", USE], {"PYTHONPATH": str(tmp_path / "there")}, tmp_path)
    assert used.returncode == 0, used.stderr
    assert used.stdout.startswith(str(tmp_path))
