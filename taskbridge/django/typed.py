"""Adapt the commands and settings in messages to a Django project."""

from __future__ import annotations

import os

from django.conf import settings

from taskbridge.cli import console
from taskbridge.cli.main import COMMANDS
from taskbridge.django.configuration import POSTGRES, alias_of_postgres, url_of

__all__ = ["as_typed_here", "typed"]


def as_typed_here() -> dict[str, str]:
    """Return the parts of messages that differ in this project, with their replacements."""
    commands = {f"taskbridge {name}": f"manage.py taskbridge {name}" for name in COMMANDS}
    return commands | {"taskbridge migrate": "manage.py migrate", POSTGRES: _where_postgres_is_set()}


def typed(text: str) -> str:
    """Return a message adapted to this project."""
    console.TYPED.update(as_typed_here())
    return console.spoken(text)


def _where_postgres_is_set() -> str:
    alias = alias_of_postgres()
    # `manage.py taskbridge` puts the URL of DATABASES into the environment.
    if alias is None or getattr(settings, POSTGRES, None) or os.environ.get(POSTGRES, url_of(alias)) != url_of(alias):
        return POSTGRES
    return f"DATABASES[{alias!r}]"
