"""A record keeps the trace of the span that wrote it."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Neither statement reads the table, however large it is: what is there has no trace, which the constraint allows.
COLUMN = """
ALTER TABLE records ADD COLUMN traceparent text COLLATE "C";
ALTER TABLE records ADD CONSTRAINT ck_records_traceparent
    CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$') NOT VALID;
COMMENT ON COLUMN records.traceparent IS
    'The span that wrote the row last, as W3C''s traceparent; null: it was not traced.';
"""
# What it writes is no longer what the former writer's span was about.
FUNCTION = """
CREATE OR REPLACE FUNCTION @schema.record(source text, tenant text, key text, document jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO @schema.records AS r (source, tenant, key, document) VALUES ($1, $2, $3, $4)
    ON CONFLICT ON CONSTRAINT pk_records DO UPDATE SET document = excluded.document, deleted = false, traceparent = NULL
    WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document;
    RETURN FOUND;
END
$$;
"""


def upgrade() -> None:
    """Add the column, and let the function for SQL empty it."""
    connection = op.get_bind()
    connection.exec_driver_sql(COLUMN)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    connection.exec_driver_sql(FUNCTION.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
