"""The libraries that TaskBridge needs: whether they are new enough, and what to install if one is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from taskbridge.errors import ConfigurationError, MissingExtra

__all__ = ["check_libraries", "explained_imports"]

PACKAGE: Final = "celery-taskbridge"
CHECKED: Final = ("celery", "kombu", "redis", "sqlalchemy", "psycopg")
"""An older version fails on import, or much later with an unclear error."""

EXTRAS: Final = {
    "alembic": "cli",
    "prometheus_client": "cli",
    "rich": "cli",
    "psutil": "embedded",
    "httpcore2": "web",
    "jinja2": "web",
    "starlette": "web",
    "uvicorn": "web",
}
"""The extra that installs each module; the package alone needs none of them."""

_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(\[[^]]*\])?>=(?P<lowest>[\d.]+)")


def check_libraries() -> None:
    """Check, without importing them, that no library is older than the package's metadata allow.

    Raises:
        ConfigurationError: some are; the message says what to install.
    """
    try:
        required = requires(PACKAGE) or []
    except PackageNotFoundError:  # a checkout that was not installed
        return
    wrong, wanted = [], []
    for requirement in filter(None, (_REQUIREMENT.fullmatch(text) for text in required)):
        name, lowest = requirement["name"], requirement["lowest"]
        installed = _installed(name) if name.lower() in CHECKED else None
        if installed is not None and _numbers(installed) < _numbers(lowest):
            wrong.append(f"{name} {installed} is too old (TaskBridge needs {lowest} or newer)")
            wanted.append(f"'{requirement[0]}'")
    if wrong:
        raise ConfigurationError(" and ".join(wrong), f"run `pip install --upgrade {' '.join(wanted)}`")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> list[int]:
    """Return a version's numbers without trailing zeros: 5.4 equals 5.4.0."""
    release = re.match(r"[\d.]*", text)
    numbers = [int(number) for number in (release[0] if release else "").split(".") if number]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say what to install if an import in the block fails because a library, or libpq, is missing.

    Raises:
        MissingExtra: an extra installs it.
        ConfigurationError: psycopg finds no libpq.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and library in EXTRAS:
            raise MissingExtra(library, EXTRAS[library]) from error
        # psycopg's error has no name, and its text is about its implementation.
        if "no pq wrapper" in str(error):
            raise ConfigurationError(
                "psycopg finds no libpq, the client library of PostgreSQL",
                "install it from your system's packages (libpq5 on Debian), or run `pip install 'psycopg[binary]'`",
            ) from error
        raise
