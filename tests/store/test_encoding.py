"""A database may have another encoding than UTF8: what that lacks is refused with a sentence, and doctor says it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.errors import InvalidInput
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.store import connect, migrate, record, record_many
from tests.transactions.conftest import producer


@pytest.fixture
def latin1(engine: Engine) -> Iterator[str]:
    name, url = f"latin1_{secrets.token_hex(4)}", make_url(engine.url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'"
        )
        try:
            yield url.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name}")


def test_what_the_encoding_lacks_is_refused_with_a_sentence(latin1: str, servers: Servers) -> None:
    engine = connect(latin1, statement_timeout=10)
    migrate(engine)
    settings = Settings(latin1, servers.redis_url, notify_timeout=10)
    made = producer(settings)
    record(engine, "invoices", "Müller", "1", {"é": "à"})
    for tenant, document in (("\u65e5\u672c", {}), ("acme", {"name": "\u65e5\u672c"})):
        with pytest.raises(InvalidInput, match=r"a character that the database cannot store in its encoding: .*UTF8"):
            made.record(tenant, "1", document, source="invoices")
        with pytest.raises(InvalidInput, match="in its encoding"):
            record_many(engine, "invoices", [(tenant, "1", document)])
    runtime = runtime_of(make_app(settings).app)
    (found,) = [one for one in examine(runtime) if one.check == "encoding"]
    assert (found.level, found.text.split()[0]) == (Level.WARNING, "LATIN1")
    assert "UTF8" in found.remedy
    for one in (runtime, runtime_of(made.app)):
        one.close()
    engine.dispose()
