"""TaskBridge goes along where Django gives a database another name, as it does in tests, and leaves no session behind.

A test's database is made while the process runs, copied for each process of `manage.py test --parallel`, and dropped.
Whoever had settings or sessions before would write into the project's own database. Postgres neither copies nor drops
a database to which somebody is connected.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections

from taskbridge.django.configuration import alias_of_handlers
from taskbridge.process.runtime import reread

__all__ = ["follow"]


def follow() -> None:
    """Go along with the database of handlers. The others are left alone: the driver of one may not be installed."""
    alias = alias_of_handlers()
    if alias is not None and alias in connections:
        creation: Any = connections[alias].creation
        kind: Any = type(creation)
        creation.__class__ = _followed(kind)


class Followed:
    """What makes and drops a database of tests; `_followed` mixes it in."""

    def create_test_db(self, *arguments: Any, **options: Any) -> Any:
        """Make it. Migrations may use it, and it is copied next."""
        reread()
        try:
            return super().create_test_db(*arguments, **options)  # type: ignore[misc]
        finally:
            reread()

    def setup_worker_connection(self, *arguments: Any, **options: Any) -> Any:
        """Take the copy that is for this process."""
        reread()
        return super().setup_worker_connection(*arguments, **options)  # type: ignore[misc]

    def destroy_test_db(self, *arguments: Any, **options: Any) -> Any:
        """Drop it, and take the project's own again."""
        reread()
        return super().destroy_test_db(*arguments, **options)  # type: ignore[misc]


@cache
def _followed(of: type) -> type:
    """Return the class of a project's backend with `Followed`."""
    return type(f"Followed{of.__name__}", (Followed, of), {"__module__": of.__module__})
