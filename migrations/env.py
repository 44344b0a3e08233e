"""Alembic's way in. `taskbridge migrate` hands over its connection; there is no alembic.ini."""

from __future__ import annotations

from alembic import context

from taskbridge.store.schema import VERSION_TABLE
from taskbridge.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
