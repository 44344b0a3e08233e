"""What tests of the store share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.store import connect
from taskbridge.testing.servers import fresh_database
from tests.store.adopting import run


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


@pytest.fixture
def role(engine: Engine) -> Iterator[tuple[str, Engine]]:
    """A role that owns nothing but a schema, `shop`; it is dropped in the end."""
    name = f"shop_{secrets.token_hex(4)}"
    run(
        engine,
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        f"GRANT USAGE ON SCHEMA public, taskbridge TO {name}",
        f"CREATE SCHEMA shop AUTHORIZATION {name}",
    )
    own = connect(make_url(engine.url).set(username=name, password="secret").render_as_string(hide_password=False))
    yield name, own
    own.dispose()
    run(engine, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")
