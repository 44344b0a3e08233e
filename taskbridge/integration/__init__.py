"""TaskBridge on a Celery app: its tasks, its queues and the threads of its workers."""

from __future__ import annotations

import sys
from pathlib import Path

from taskbridge.common.libraries import check_libraries, explained_imports
from taskbridge.errors import ConfigurationError

__all__ = ["is_celery"]


def is_celery(program: Path) -> bool:
    """Whether this is the program `celery`."""
    return program.stem == "celery" or (program.name == "__main__.py" and program.parent.name == "celery")


try:
    # Before the modules of this package import a library that is too old.
    check_libraries()
    with explained_imports():
        import psycopg as _  # noqa: F401
except ConfigurationError as error:
    if not is_celery(Path(sys.argv[0])):
        raise
    # Celery would print a traceback and end with a status of its own.
    sys.stderr.write(f"taskbridge: {error}\n")
    raise SystemExit(error.exit_status) from None
