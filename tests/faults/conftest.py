"""A server that may fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from taskbridge.testing.servers import open_directory
from verification.torture.servers import RedisHere


@pytest.fixture
def server() -> Iterator[RedisHere]:
    """A Redis of the test's own."""
    with open_directory() as folder, closing(RedisHere(folder)) as own:
        own.start()
        yield own
