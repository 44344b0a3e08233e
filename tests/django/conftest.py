"""A Django project in the process of the tests. Outside of these tests TaskBridge knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connections

from taskbridge.common.texts import TYPED
from taskbridge.django import checkout, configuration
from taskbridge.django.typed import as_typed_here
from taskbridge.settings import GIVEN
from taskbridge.worker.middleware import MIDDLEWARE
from tests.deployment import Deployment
from tests.django import settled  # noqa: F401 - before any model is imported
from tests.failures.drill import Drill


def database(url: Any) -> dict[str, Any]:
    """Return the database of a URL of SQLAlchemy's, as Django's settings have it."""
    where = {"HOST": url.host or url.query.get("host", ""), "PORT": str(url.port or url.query.get("port", ""))}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        **where,
    }


@pytest.fixture
def project(deployment: Deployment) -> Iterator[None]:
    """The project on the test's database, with its tables."""
    for alias in ("default", "other"):
        connections[alias].settings_dict.update(database(deployment.engine.url))
    GIVEN.append(configuration.variables)
    TYPED.append(as_typed_here)
    MIDDLEWARE.append(checkout.checkout)
    with connections["default"].schema_editor() as editor:
        for model in apps.get_app_config("shop").get_models():
            editor.create_model(model)
    yield
    GIVEN.clear()
    TYPED.clear()
    MIDDLEWARE.clear()
    connections.close_all()


@pytest.fixture
def drill(deployment: Deployment, project: None) -> Drill:  # noqa: ARG001 - the drill's handlers write into it
    return Drill(deployment)
