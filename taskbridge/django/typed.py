"""Adapt the commands and settings in messages to a Django project."""

from __future__ import annotations

import os

from django.conf import settings

from taskbridge.django.configuration import POSTGRES, alias_of_postgres, defaults

__all__ = ["as_typed_here"]


def as_typed_here() -> dict[str, str]:
    """Return the parts of messages that differ in this project, with their replacements."""
    from taskbridge.cli.main import cli  # noqa: PLC0415 - not needed until there is a message

    commands = {f"taskbridge {name}": f"manage.py taskbridge {name}" for name in cli.commands}
    # `manage.py taskbridge` puts the defaults into the environment.
    sources = {
        name: f"DATABASES[{alias_of_postgres()!r}]" if name == POSTGRES else "CELERY_BROKER_URL"
        for name, url in defaults().items()
        if not getattr(settings, name, None) and os.environ.get(name, url) == url
    }
    return commands | {"taskbridge migrate": "manage.py migrate"} | sources
