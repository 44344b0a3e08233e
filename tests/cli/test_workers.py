"""Parts of `taskbridge up`: workers that die, what it takes for idle, and signals."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskbridge.cli import workers
from taskbridge.cli.workers import has_pending, is_idle
from taskbridge.errors import Unavailable
from tests.deployment import Deployment
from tests.second.world import PIPELINE, World
from tests.waiting import wait_until


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end at once."""
    monkeypatch.setattr(workers, "sys", SimpleNamespace(executable="/bin/false"))


@pytest.mark.usefixtures("dying")
def test_a_worker_that_dies_at_once_is_given_up_after_its_fifth_death(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def given_up() -> Unavailable | None:
        try:
            worker.watch()
        except Unavailable as error:
            return error
        return None

    with workers.workers(1, 1, directory) as (worker,):
        error = wait_until(given_up, "the worker is given up")
    assert capsys.readouterr().err.count("ended with status 1; restarting it") == 4
    assert "ended with status 1, 5 times shortly after starting" in str(error)
    assert str(directory / "worker-1.log") in str(error)


@pytest.mark.usefixtures("dying")
def test_a_worker_that_never_gets_ready_is_an_error_at_once(directory: Path) -> None:
    with (
        workers.workers(2, 1, directory) as running,
        pytest.raises(Unavailable, match=r"worker(\d) .*ended with status 1; the end of its log, .*worker-\1\.log"),
    ):
        workers.wait_until_ready(running)


def test_after_a_look_at_the_state_that_took_long_workers_are_watched_again_soon(deployment: Deployment) -> None:
    looks = list[float]()

    def finished(_: object) -> bool:
        looks.append(time.monotonic())
        time.sleep(1)
        return len(looks) == 2

    assert workers.watch(World(deployment).runtime, [], finished, ours=False)
    assert looks[1] - looks[0] < 8


DROPPED = """
import os, signal, weakref
from taskbridge.cli import interrupts

class Thing:
    pass

interrupts.install()
thing = Thing()
# Python reports what is raised in a weakref's callback and goes on.
mark = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT) or [None for _ in range(1000)])
del thing
print("goes on", flush=True)
try:
    interrupts.check()
except interrupts.Interrupted as caught:
    print(caught.exit_status)
"""


def test_a_signal_in_a_weakref_callback_is_not_forgotten() -> None:
    ended = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False, timeout=60)
    assert "Interrupted" in ended.stderr, "the signal came inside the callback, and was dropped"
    assert ended.stdout.split("\n")[:2] == ["goes on", "130"]


def test_a_tenant_that_waits_for_its_delay_is_not_idle_even_when_redis_lost_it(deployment: Deployment) -> None:
    world = World(deployment)
    assert is_idle(world.runtime)
    world.record("ERROR", "billing")
    assert not is_idle(world.runtime)
    world.run_all()
    assert is_idle(world.runtime)

    world.go_to(60_000)
    world.record("WARNING", "billing")
    assert not is_idle(world.runtime)
    deployment.redis.flushdb()
    assert not world.runtime.gate.active(PIPELINE)
    assert has_pending(world.runtime)
    assert not is_idle(world.runtime)

    world.runtime.gate.notify(PIPELINE, "billing", world.runtime.pipelines[PIPELINE].policy.spacing)
    world.run_all()
    assert is_idle(world.runtime)
