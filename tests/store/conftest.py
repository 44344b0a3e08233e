"""What tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from taskbridge.embedded import Servers
from taskbridge.store import connect
from taskbridge.testing.servers import fresh_database


@pytest.fixture(scope="module")
def shared(taskbridge_servers: Servers, taskbridge_template: str) -> Iterator[Engine]:
    """One database for those tests of a module that look at its rows and change none."""
    with fresh_database(taskbridge_servers, taskbridge_template) as url:
        engine = connect(url)
        yield engine
        engine.dispose()


@pytest.fixture
def bounded(engine: Engine) -> Iterator[Engine]:
    """Connections as a worker has them, with a time-out that a test can wait for."""
    made = connect(engine.url.render_as_string(hide_password=False), statement_timeout=0.5)
    yield made
    made.dispose()
