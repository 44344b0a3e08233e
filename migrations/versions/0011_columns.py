"""An adopted table's columns are known by their numbers, so that they can be renamed; a backfill has phases."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# By a trigger, so that statements that were printed by an earlier version keep the numbers too.
TABLE = """
ALTER TABLE adopted ADD COLUMN column_numbers smallint[], ADD COLUMN numbered oid;
COMMENT ON COLUMN adopted.column_numbers IS
    'The columns of tenant and key, and those watched, whatever they are called by now.';
COMMENT ON COLUMN adopted.numbered IS
    'The table whose numbers these are: after a dump it is another, and the names count.';
CREATE FUNCTION number_columns() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.numbered := NEW.relation;
    NEW.column_numbers := ARRAY(
        SELECT t.attnum
        FROM unnest(NEW.tenant_column || NEW.key_columns || NEW.watched_columns) WITH ORDINALITY c (name, place)
        LEFT JOIN pg_attribute t ON t.attrelid = NEW.relation AND t.attname = c.name AND NOT t.attisdropped
        ORDER BY c.place
    );
    RETURN NEW;
END
$$;
CREATE TRIGGER number_columns
    BEFORE INSERT OR UPDATE OF relation, tenant_column, key_columns, watched_columns ON adopted
    FOR EACH ROW EXECUTE FUNCTION number_columns();
UPDATE adopted SET relation = relation;

ALTER TABLE adopted ADD COLUMN backfill_of text NOT NULL DEFAULT 'rows'
    CONSTRAINT ck_adopted_backfill_of CHECK (backfill_of IN ('rows', 'records'));
UPDATE adopted SET backfill_of = 'records', backfill_columns = NULL WHERE backfill_columns = '{the records}';
COMMENT ON COLUMN adopted.backfill_of IS
    'The phase: "rows" get their records; then, where changes may have been missed, "records" may have lost their row.';
COMMENT ON COLUMN adopted.backfill_after IS
    'The row, by the unique index, or the record, by tenant and key, up to which the phase has come; null: to no row.';
COMMENT ON COLUMN adopted.backfill_columns IS
    'The columns and types of the index by which rows are taken: of another index the place says nothing.';
COMMENT ON COLUMN adopted.backfilled IS 'How many rows the backfill has looked at.';
COMMENT ON COLUMN adopted.backfilled_at IS 'When the backfill was done.';
"""


def upgrade() -> None:
    """Number the columns of what is adopted already, and make the phase of backfills a column."""
    op.get_bind().exec_driver_sql(TABLE)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
