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
    record(engine, "invoices", "Müller", "1", {"é": "à"})
    lacking: list[tuple[str, dict[str, str]]] = [("\u65e5\u672c", {}), ("acme", {"name": "\u65e5\u672c"})]
    for tenant, document in lacking:
        refused = r"a character that the database cannot store in its encoding: .*UTF8"
        with pytest.raises(InvalidInput, match=refused):
            record_many(engine, "invoices", [(tenant, "1", document)])
    runtime = runtime_of(make_app(Settings(latin1, servers.redis_url)).app)
    (found,) = [one for one in examine(runtime) if one.check == "encoding"]
    assert (found.level, found.text.split()[0]) == (Level.WARNING, "LATIN1")
    assert "UTF8" in found.remedy
    runtime.close()
    engine.dispose()
