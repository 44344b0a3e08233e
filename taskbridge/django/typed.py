"""Commands in messages, as they are typed in a project of Django's."""

from __future__ import annotations

import re
import sys
from typing import Final

from django.conf import settings

from taskbridge.cli.main import COMMANDS

__all__ = ["typed"]

_COMMAND: Final = re.compile(rf"(?<!-A )(?<!manage\.py )\btaskbridge (?=(?:{'|'.join(COMMANDS)})\b)")
_UNKNOWN: Final = "PROJECT"


def typed(text: str) -> str:
    """Return a text in which commands are those of `manage.py`, and workers those of the project's own Celery app."""
    here = text.replace("`taskbridge migrate`", "`manage.py migrate`")
    return _COMMAND.sub("manage.py taskbridge ", here).replace("celery -A taskbridge ", f"celery -A {_app()} ")


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
