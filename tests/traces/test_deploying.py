"""A rolling deployment: each version on the schema of the other."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.deployment import Deployment

FORMER = """
INSERT INTO taskbridge.records AS r (source, tenant, key, document)
SELECT 'invoices', 'acme', '1', '{"by": "the former version"}'
ON CONFLICT (source, tenant, key) DO UPDATE SET document = excluded.document, deleted = false
WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document
RETURNING tenant
"""


def _go_back(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE taskbridge.records DROP COLUMN traceparent")
        connection.exec_driver_sql("UPDATE taskbridge.taskbridge_schema SET version_num = '0011'")


def test_the_statement_of_the_former_version_on_this_schema(deployment: Deployment) -> None:
    with deployment.engine.begin() as connection:
        assert connection.exec_driver_sql(FORMER).scalars().all() == ["acme"]
        assert connection.exec_driver_sql(FORMER).scalars().all() == []
