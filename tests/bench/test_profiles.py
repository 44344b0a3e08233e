"""A profile's shares are what py-spy sampled; what it drew tells nothing of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import figures, flames
from benchmarks.profiles import PROFILES, by_function, by_package, read_raw
from tests.bench.test_page import PRIVATE

RAW = """\
main (app.py:1);notify (taskbridge/producing/notify.py:40);send (redis/client.py:7) 6
main (app.py:1);notify (taskbridge/producing/notify.py:41);send (redis/client.py:9);send (redis/client.py:7) 2
main (app.py:1);notify (taskbridge/producing/notify.py:40) 1
;<listcomp> (taskbridge/producing/notify.py:3) 1
 5
"""
SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
MAY_TRACE = sys.platform == "linux" and (os.geteuid() == 0 or not SCOPE.exists() or SCOPE.read_text().strip() == "0")


def test_functions_have_their_own_share_and_that_of_what_they_call_once_per_stack() -> None:
    table = by_function("title", read_raw(RAW.splitlines()), most=2)
    assert [tuple(row) for row in table.rows] == [
        ("send (redis/client.py)", 80, 80),
        ("notify (taskbridge/producing/notify.py)", 10, 90),
    ]


def test_packages_have_the_share_of_their_functions() -> None:
    table = by_package("title", read_raw(RAW.splitlines()))
    assert [tuple(row) for row in table.rows] == [
        ("redis", 80, 80),
        ("taskbridge", 20, 100),
        ("Python itself", 0, 90),
    ]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not MAY_TRACE, reason="tracing another process is not allowed here")
def test_the_recorder_writes_pictures_and_shares_without_a_path_of_the_machine(tmp_path: Path) -> None:
    options = [str(tmp_path), "--only", "notify", "--seconds", "1"]
    result = CliRunner().invoke(flames.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = figures.read(tmp_path / PROFILES)["profile-notify"].report
    packages = {str(row[0]) for row in found.tables[0].rows}
    assert {"taskbridge", "redis"} <= packages
    picture = (tmp_path / "notify.svg").read_text()
    assert "<svg" in picture
    assert PRIVATE.search(picture.replace("http://www.w3.org/", "")) is None
    assert PRIVATE.search((tmp_path / PROFILES).read_text()) is None
