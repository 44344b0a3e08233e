"""The run history: a row for each run, in a partition for each day, and sums for each minute."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE runs (
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    began_sweeps bigint NOT NULL,
    sweeps bigint NOT NULL,
    at_id bigint,
    at_xid xid8,
    events integer NOT NULL,
    burst_run integer NOT NULL,
    records integer NOT NULL,
    rejected integer NOT NULL,
    first_event_ms integer,
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    worker text NOT NULL,
    outcome text NOT NULL,
    snapshot pg_snapshot,
    target pg_snapshot,
    error text,
    CONSTRAINT pk_runs PRIMARY KEY (pipeline, tenant, token, began_at)
) PARTITION BY RANGE (began_at);
CREATE INDEX ix_runs_began_at ON runs USING brin (began_at) WITH (autosummarize = on);
CREATE INDEX ix_runs_ended_at ON runs USING brin (ended_at) WITH (autosummarize = on);
CREATE TABLE runs_other PARTITION OF runs DEFAULT;
COMMENT ON TABLE runs IS
    'The run history: a row for each run that took records or failed, in a partition for each day (UTC).';
COMMENT ON TABLE runs_other IS 'Runs of days that have no partition, as where no worker could make it.';
COMMENT ON COLUMN runs.began_at IS 'When it claimed the cursor.';
COMMENT ON COLUMN runs.ended_at IS 'When it advanced last, or failed.';
COMMENT ON COLUMN runs.began_sweeps IS
    'How often the cursor had been advanced when it began. The run before it ended there.';
COMMENT ON COLUMN runs.sweeps IS 'The same when it ended.';
COMMENT ON COLUMN runs.snapshot IS
    'Where the cursor stood when it ended: this, target, at_xid and at_id as in sync_cursors. Null: before a rebase.';
COMMENT ON COLUMN runs.events IS 'Events since the run before it.';
COMMENT ON COLUMN runs.burst_run IS 'Which run of its burst it was, from 1.';
COMMENT ON COLUMN runs.rejected IS 'Records that went to quarantine, of those that it took.';
COMMENT ON COLUMN runs.first_event_ms IS 'Milliseconds from the burst''s first event to the first delivery.';
COMMENT ON COLUMN runs.reason IS
    'Why it began: event (the first of a burst), burst (more events), record (records without an event), more (records '
    'were left, or a wait was over), retry (a run failed), died (the run before did not end), probe (of the circuit), '
    'unknown (it did not end, and was replaced).';
COMMENT ON COLUMN runs.outcome IS 'handled or failed.';

CREATE TABLE run_minutes (
    minute timestamptz NOT NULL,
    runs bigint NOT NULL,
    failed bigint NOT NULL,
    events bigint NOT NULL,
    bursts bigint NOT NULL,
    records bigint NOT NULL,
    rejected bigint NOT NULL,
    run_ms bigint NOT NULL,
    first_event_ms_sum bigint NOT NULL,
    pipeline text COLLATE "C" NOT NULL,
    first_event_counts integer[] NOT NULL,
    CONSTRAINT pk_run_minutes PRIMARY KEY (pipeline, minute)
);
COMMENT ON TABLE run_minutes IS 'Sums of the run history for each minute in which runs began.';
COMMENT ON COLUMN run_minutes.run_ms IS 'How long the runs took together, in milliseconds.';
COMMENT ON COLUMN run_minutes.first_event_counts IS
    'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';
"""

FUNCTION = """
-- Makes partitions ahead, and drops those that are too old. It is called by workers, who do not own the table. Each
-- lock that it waits for would keep runs waiting behind it, so it gives up soon, and is called again.
CREATE FUNCTION @schema.keep_runs(days integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET client_min_messages = warning AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    oldest date := today - keep_runs.days;
    day date;
    old name;
BEGIN
    IF NOT pg_try_advisory_xact_lock('@schema.runs'::regclass::oid::bigint) THEN
        RETURN; -- another worker does it
    END IF;
    DELETE FROM @schema.runs_other o WHERE o.began_at < oldest::timestamp AT TIME ZONE 'UTC';
    DELETE FROM @schema.run_minutes m WHERE m.minute < oldest::timestamp AT TIME ZONE 'UTC';
    FOR day IN SELECT today + ahead FROM generate_series(0, 2) ahead LOOP
        -- A day that has rows elsewhere stays there.
        IF to_regclass(format('@schema.%I', 'runs_' || to_char(day, 'YYYYMMDD'))) IS NULL AND NOT EXISTS (
            SELECT FROM @schema.runs_other o
            WHERE o.began_at >= day::timestamp AT TIME ZONE 'UTC'
              AND o.began_at < (day + 1)::timestamp AT TIME ZONE 'UTC'
        ) THEN
            BEGIN
                EXECUTE format(
                    'CREATE TABLE @schema.%I PARTITION OF @schema.runs FOR VALUES FROM (%L) TO (%L)',
                    'runs_' || to_char(day, 'YYYYMMDD'),
                    day::timestamp AT TIME ZONE 'UTC',
                    (day + 1)::timestamp AT TIME ZONE 'UTC'
                );
            EXCEPTION WHEN lock_not_available THEN
                EXIT; -- the next call may do it
            END;
        END IF;
    END LOOP;
    FOR old IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = '@schema.runs'::regclass AND c.relname ~ '^runs_[0-9]{8}$'
          AND to_date(substr(c.relname, 6), 'YYYYMMDD') < oldest
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE @schema.%I', old);
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION @schema.keep_runs(integer) FROM PUBLIC;
COMMENT ON FUNCTION @schema.keep_runs(integer) IS
    'Make partitions of the run history for the next days, and drop what is older than so many days.';
"""


def upgrade() -> None:
    """Make the tables, and the function that turns their days."""
    connection = op.get_bind()
    connection.exec_driver_sql(TABLES)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    connection.exec_driver_sql(FUNCTION.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
