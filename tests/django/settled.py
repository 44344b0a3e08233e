"""Django's settings in a process of tests. Whoever needs them imports this: they can be made once."""

from __future__ import annotations

import django
from django.conf import settings

from taskbridge.common.texts import TYPED
from taskbridge.settings import GIVEN
from taskbridge.worker.middleware import MIDDLEWARE

_NOWHERE = {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}
_LITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}

settings.configure(
    DATABASES={"default": dict(_NOWHERE), "other": dict(_NOWHERE), "lite": _LITE},
    INSTALLED_APPS=["taskbridge.django", "tests.django.shop"],
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    LOGGING_CONFIG=None,
)
django.setup()
GIVEN.clear()
TYPED.clear()
MIDDLEWARE.clear()
