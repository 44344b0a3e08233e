"""Alembic's way in. `taskbridge migrate` passes its connection and the schema in; there is no alembic.ini.

Migrations write their objects' names without a schema: for the length of the migration it is the only one looked in.
"""

from __future__ import annotations

from alembic import context

from taskbridge.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
