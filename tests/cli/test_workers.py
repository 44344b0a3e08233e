"""Workers of `taskbridge up` that die are started again, and are given up when that is of no use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from taskbridge.cli import interrupts, workers
from taskbridge.cli.workers import Workers
from taskbridge.errors import Unavailable
from tests.waiting import wait_until


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end at once, and are started again without a pause."""
    monkeypatch.setattr(workers, "sys", SimpleNamespace(executable="/bin/false"))
    monkeypatch.setattr(workers, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(interrupts, "_State", type("State", (interrupts._State,), {}))


@pytest.mark.usefixtures("dying")
def test_a_worker_that_dies_at_once_is_given_up_after_its_fifth_death(directory: Path) -> None:
    said: list[str] = []

    def given_up() -> Unavailable | None:
        try:
            running.watch()
        except Unavailable as error:
            return error
        return None

    with Workers(1, 1, directory, said.append) as running:
        error = wait_until(given_up, "the worker is given up")
    assert len(said) == 4
    assert all("worker1 (pid " in line and "restarting it" in line for line in said)
    assert "ended with status 1, 5 times shortly after starting" in str(error)
    assert str(directory / "worker-1.log") in str(error)


@pytest.mark.usefixtures("dying")
def test_a_worker_that_never_gets_ready_is_an_error_at_once(directory: Path) -> None:
    with (
        Workers(2, 1, directory, print) as running,
        pytest.raises(Unavailable, match=r"worker1 ended with status 1; the end of its log, .*worker-1\.log"),
    ):
        running.wait_until_ready()
