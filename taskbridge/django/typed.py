"""Commands in messages, as they are typed in a project of Django's, and where its database is set."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

from django.conf import settings
from django.db import connections

from taskbridge.cli.main import COMMANDS
from taskbridge.django.configuration import alias_of_handlers, url_of

__all__ = ["typed"]

_COMMAND: Final = re.compile(rf"(?<!-A )(?<!manage\.py )\btaskbridge (?=(?:{'|'.join(COMMANDS)})\b)")
_UNKNOWN: Final = "PROJECT"
_POSTGRES: Final = "TASKBRIDGE_POSTGRES_URL"


def typed(text: str) -> str:
    """Return a text with the commands of `manage.py`, workers of the project's own Celery app, and its DATABASES."""
    here = text.replace("`taskbridge migrate`", "`manage.py migrate`")
    if _POSTGRES in here:
        here = here.replace(_POSTGRES, _where_postgres_is_set())
    return _COMMAND.sub("manage.py taskbridge ", here).replace("celery -A taskbridge ", f"celery -A {_app()} ")


def _where_postgres_is_set() -> str:
    alias = alias_of_handlers()
    if alias is None or alias not in connections or connections[alias].vendor != "postgresql":
        return _POSTGRES
    # `manage.py taskbridge` puts the URL of DATABASES into the environment.
    of_process = os.environ.get(_POSTGRES)
    if getattr(settings, _POSTGRES, None) or (of_process and of_process != url_of(alias)):
        return _POSTGRES
    return f"DATABASES[{alias!r}]"


def _app() -> str:
    """Return where the project has its Celery app, as `celery -A` takes it; "PROJECT": it is not known."""
    celery = getattr(sys.modules.get("celery"), "Celery", None)
    package = (getattr(settings, "SETTINGS_MODULE", None) or "").partition(".")[0]
    if celery is None or not package:
        return _UNKNOWN
    for name, module in list(sys.modules.items()):
        has_app = name.partition(".")[0] == package and any(isinstance(one, celery) for one in vars(module).values())
        if has_app:
            return name.removesuffix(".celery")
    return _UNKNOWN
