"""The public names are those of `__all__`, sorted; errors form the tree that their module draws."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

from taskbridge import errors
from taskbridge.producer.producer import Bridge


def test_each_coroutine_takes_what_its_twin_takes() -> None:
    twins = [name for name in vars(Bridge) if f"a{name}" in vars(Bridge)]
    assert twins == ["record", "record_many", "record_invoice", "record_event", "notify", "notify_many"]
    for name in twins:
        call, coroutine = getattr(Bridge, name), getattr(Bridge, f"a{name}")
        assert inspect.signature(call) == inspect.signature(coroutine), name
        assert inspect.iscoroutinefunction(coroutine)


def test_an_error_has_what_is_wrong_and_the_remedy_apart() -> None:
    cases = {
        errors.InvalidInput("a: b", "c"): ("a: b", "c", "a: b: c"),
        errors.InvalidInput("a: b", ""): ("a: b", "", "a: b"),
        errors.Unavailable("a: b: c"): ("a", "b: c", "a: b: c"),
    }
    for error, expected in cases.items():
        for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - as Celery does
            assert (one.what, one.remedy, str(one)) == expected


def test_importing_the_package_reads_no_setting_and_touches_no_server() -> None:
    environment = {"TASKBRIDGE_REDIS_URL": "nonsense", "TASKBRIDGE_RUNNER_TTL": "nonsense"}
    command = [sys.executable, "-c", "import taskbridge; taskbridge.notify_event; taskbridge.app"]
    subprocess.run(command, check=True, env=environment, timeout=30)
