"""What the benchmark of recovery says without the packages that it measures."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main


@pytest.mark.parametrize("package", ["celery_once", "celery_singleton"])
def test_without_the_peers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # Python's way to say that it cannot be imported
    result = CliRunner().invoke(main, ["recovery"])
    assert result.exit_code == 1
    assert "pip install '.[dev]'" in result.stderr
