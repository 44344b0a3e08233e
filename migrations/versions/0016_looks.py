r"""For who looks: quarantine by what is open, and the kind of an error.

A look at quarantine reads no record that was discarded. Errors are of one kind if their texts differ in addresses, ids
and long numbers alone.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# Quarantine holds few records of all, and nobody writes into it but a run that gives one up.
INDEX = """
CREATE INDEX ix_quarantine_open ON quarantine (pipeline, tenant) WHERE discarded_at IS NULL AND retry_at IS NULL;
"""
# Short numbers that stand alone stay, for they are statuses of HTTP. What an error is about stands at its beginning.
FUNCTION = r"""
CREATE FUNCTION error_kind(said text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT left(
        regexp_replace(
            regexp_replace(
                regexp_replace(
                    btrim(regexp_replace(left(said, 2000), '\s+', ' ', 'g')),
                    '[a-z][a-z0-9+.-]*://[^\s''"<>]+', '<url>', 'gi'
                ),
                '\y([0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}|(0x)?[0-9a-f]{8,})\y', '<id>', 'gi'
            ),
            '\d+\.\d+|\d{4,}|(?<=[-_#/=:])\d+', '<n>', 'g'
        ),
        300
    )
$$;
COMMENT ON FUNCTION error_kind(text) IS
    'An error without what differs from record to record: white space, addresses, ids and numbers.';
"""


def upgrade() -> None:
    """Make the index and the function."""
    connection = op.get_bind()
    connection.exec_driver_sql(INDEX)
    connection.exec_driver_sql(FUNCTION)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
