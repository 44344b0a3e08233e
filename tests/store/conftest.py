"""What tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from taskbridge.store import connect


@pytest.fixture
def bounded(engine: Engine) -> Iterator[Engine]:
    """Connections as a worker has them, with a time-out that a test can wait for."""
    made = connect(engine.url.render_as_string(hide_password=False), statement_timeout=0.5)
    yield made
    made.dispose()
