-- Tables, functions, views and triggers of TaskBridge. @schema stands for the schema and @name for its name as a text;
-- @control and @space are classes of characters in the server's regular expressions.

CREATE FUNCTION @schema.announce(source text, announces boolean DEFAULT true) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    -- A name has 63 bytes at the most.
    name text := 'announce_' || left(source, 44) || '_' || left(md5(source), 8);
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS %I ON @schema.records', name);
    IF announces THEN
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER %I AFTER INSERT OR UPDATE ON @schema.records '
            'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.source = %L) '
            'EXECUTE FUNCTION @schema.announce_commit()',
            name, source
        );
    END IF;
END
$$;

COMMENT ON FUNCTION @schema.announce IS
    'Let commits of a source wake the workers that listen, so that their records need not wait for the next poll. '
    'While this is on, commits of that source wait for each other; false turns it off.';

-- A transaction that has notified cannot be prepared. The trigger is deferred, so it runs within the statement that
-- ends the transaction, and does nothing where that prepares it: the change poller finds its records.
CREATE FUNCTION @schema.announce_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_query() !~* 'prepare\s+transaction' THEN
        PERFORM pg_notify('taskbridge', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION @schema.error_kind(said text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
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

COMMENT ON FUNCTION @schema.error_kind IS
    'An error without what differs from record to record: white space, addresses, ids and numbers.';

-- Parsed here once, so a writer's settings change nothing of it. It becomes a part of the expression that calls it.
CREATE FUNCTION @schema.is_allowed(source text, tenant text, key text, document jsonb, adopted text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN jsonb_typeof(document) = 'object'
    AND starts_with(adopted, @name || ',') AND strpos(adopted, ' ' || source || ',') = 0
    AND source ~ '^[a-z][a-z0-9_-]*$' AND char_length(source) <= 63
    AND tenant <> '' AND char_length(tenant) <= 200 AND tenant !~ '@control|^@space|@space$'
    AND key <> '' AND char_length(key) <= 200 AND key !~ '@control';

COMMENT ON FUNCTION @schema.is_allowed IS
    'Whether a record is one of those that are allowed, by what it says and by the list of adopted sources.';

CREATE FUNCTION @schema.is_handled(
    xid xid8, id bigint, snapshot pg_snapshot, target pg_snapshot, at_xid xid8, at_id bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot(xid, snapshot)
    OR coalesce(pg_visible_in_snapshot(xid, target) AND (xid, id) <= (at_xid, at_id), false);

COMMENT ON FUNCTION @schema.is_handled IS
    'Whether a record lies behind a cursor: visible in its snapshot, or passed in the sweep that is on.';

-- Makes partitions ahead, and drops those that are too old. It is called by migrations, and by workers, who do not own the table. A
-- partition is made as a table and attached, which locks neither the history nor the partition of today against inserts. Dropping
-- one locks all of it for a moment: inserts would wait behind a lock that is waited for, so it gives up soon, and is called again.
CREATE FUNCTION @schema.keep_runs(days integer) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' SET client_min_messages = warning AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    oldest date := today - keep_runs.days;
    day date;
    partition name;
BEGIN
    IF NOT pg_try_advisory_xact_lock('@schema.runs'::regclass::oid::bigint) THEN
        RETURN; -- another worker does it
    END IF;
    DELETE FROM @schema.runs_other o WHERE o.ended_at < oldest::timestamp AT TIME ZONE 'UTC';
    DELETE FROM @schema.run_minutes m WHERE m.minute < oldest::timestamp AT TIME ZONE 'UTC';
    FOR day IN SELECT today + ahead FROM generate_series(0, 2) ahead LOOP
        partition := 'runs_' || to_char(day, 'YYYYMMDD');
        -- A day that has rows elsewhere stays there.
        IF to_regclass(format('@schema.%I', partition)) IS NULL AND NOT EXISTS (
            SELECT FROM @schema.runs_other o
            WHERE o.ended_at >= day::timestamp AT TIME ZONE 'UTC'
              AND o.ended_at < (day + 1)::timestamp AT TIME ZONE 'UTC'
        ) THEN
            BEGIN
                EXECUTE format('CREATE TABLE @schema.%I (LIKE @schema.runs INCLUDING ALL)', partition);
                EXECUTE format(
                    'ALTER TABLE @schema.runs ATTACH PARTITION @schema.%I FOR VALUES FROM (%L) TO (%L)',
                    partition,
                    day::timestamp AT TIME ZONE 'UTC',
                    (day + 1)::timestamp AT TIME ZONE 'UTC'
                );
            EXCEPTION WHEN lock_not_available THEN
                EXIT; -- the next call may do it
            END;
        END IF;
    END LOOP;
    FOR partition IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = '@schema.runs'::regclass AND c.relname ~ '^runs_[0-9]{8}$'
          AND to_date(substr(c.relname, 6), 'YYYYMMDD') < oldest
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE @schema.%I', partition);
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
END
$$;

COMMENT ON FUNCTION @schema.keep_runs IS
    'Make partitions of the run history for the next days, and drop what is older than so many days.';

-- It is called with a writer's search path, so each name says its schema. It keeps its plan, which SQL does not.
CREATE FUNCTION @schema.last_id(source text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT r.id FROM @schema.records r
        WHERE r.source OPERATOR(pg_catalog.=) $1 AND r.xid OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()
          AND r.id OPERATOR(pg_catalog.>) 0
        ORDER BY r.id DESC
        LIMIT 1
    );
END
$$;

COMMENT ON FUNCTION @schema.last_id IS 'The highest id of a record of this source and transaction; null: it has none.';

-- Any program can set the parameters, so they prove nothing without the token of the run that owns the tenant's cursor now,
-- which only a role that may read cursors knows.
CREATE FUNCTION @schema.muted_tenant(source text) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    muted text := current_setting('taskbridge.muted', true);
    prefix text := source || ':';
    run text := substr(muted, length(prefix) + 1);
    name text := split_part(run, ':', 1);
BEGIN
    IF NOT starts_with(muted, prefix) THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT c.tenant FROM @schema.sync_cursors c
        WHERE c.pipeline = name AND c.tenant = substr(run, length(name) + 2)
          AND c.owner = current_setting('taskbridge.batch', true)
    );
END
$$;

COMMENT ON FUNCTION @schema.muted_tenant IS
    'The tenant whose batch this transaction handles, if its changes of the source make no records; null: there is none.';

-- The millisecond with 21 bits below it, or one more than the last of this transaction. So no two records that a
-- transaction writes into a source have the same id, also while the clock goes back. A setting has the last one and its
-- source; where a RESET has taken it, or it is another source's, the records say it. Parsed here once, so a
-- writer's settings change nothing of it, and it becomes a part of the expression that calls it.
CREATE FUNCTION @schema.next_id(source text, room bigint DEFAULT 0) RETURNS bigint LANGUAGE sql VOLATILE
RETURN split_part(set_config(
    'taskbridge.last_id',
    (room + greatest(
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 21,
        1 + CASE
            WHEN split_part(current_setting('taskbridge.last_id', true), ' ', 2) = source
             AND split_part(current_setting('taskbridge.last_id', true), ' ', 1)::numeric BETWEEN 0 AND 9e18
            THEN split_part(current_setting('taskbridge.last_id', true), ' ', 1)::bigint
            ELSE @schema.last_id(source)
        END
    ))::text || ' ' || source,
    true
), ' ', 1)::bigint - room;

COMMENT ON FUNCTION @schema.next_id IS
    'An id for a record of a source, above those that this transaction gave before; the next `room` ids are free too.';

-- Microseconds of the Unix epoch: above all that were given, also by a cluster from which this database was restored.
CREATE FUNCTION @schema.next_revision(former bigint) RETURNS bigint LANGUAGE sql VOLATILE
RETURN greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, former + 1);

COMMENT ON FUNCTION @schema.next_revision IS
    'The revision of a record that changes, above its former one; null: it is new.';

CREATE FUNCTION @schema.number_columns() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.numbered := NEW.relation;
    SELECT array_agg(t.attnum ORDER BY c.place), array_agg(t.atttypid ORDER BY c.place)
    INTO NEW.column_numbers, NEW.column_types
    FROM unnest(NEW.tenant_column || NEW.key_columns || NEW.watched_columns) WITH ORDINALITY c (name, place)
    LEFT JOIN pg_attribute t ON t.attrelid = NEW.relation AND t.attname = c.name AND NOT t.attisdropped;
    RETURN NEW;
END
$$;

-- Asked for each row that keeps its ids, so it is one expression: who may pass rights on has those of the owner.
CREATE FUNCTION @schema.owns_records() RETURNS boolean LANGUAGE sql STABLE
RETURN has_table_privilege('@schema.records', 'TRIGGER WITH GRANT OPTION');

COMMENT ON FUNCTION @schema.owns_records IS 'Whether the role has the rights of the owner of the records.';

CREATE FUNCTION @schema.record(source text, tenant text, key text, document jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO @schema.records AS r (source, tenant, key, document) VALUES ($1, $2, $3, $4)
    ON CONFLICT ON CONSTRAINT pk_records DO UPDATE SET document = excluded.document, deleted = false, traceparent = NULL
    WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document;
    RETURN FOUND;
END
$$;

COMMENT ON FUNCTION @schema.record IS 'Write or update one record of a source; returns whether anything changed.';

CREATE FUNCTION @schema.refuse_record(
    source text, tenant text, key text, document jsonb, deleted boolean, reason text, is_new boolean, is_named boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text;
BEGIN
    -- The tables are asked in conditions of their own: an expression without a query costs little.
    IF tenant <> '' AND NOT deleted AND jsonb_typeof(document) IS DISTINCT FROM 'object' THEN
        -- The document of an adopted table's record is the row.
        IF document IS NOT NULL OR NOT EXISTS (SELECT FROM @schema.adopted a WHERE a.source = $1) THEN
            problem := format(
                'tenant %s, record %s: the document is no JSON object: pass one',
                @schema.shown(tenant), @schema.shown(key));
        END IF;
    ELSIF is_new AND tenant <> '' AND document IS NOT NULL THEN
        -- Its handler would be given what the table does not have.
        IF EXISTS (SELECT FROM @schema.adopted a WHERE a.source = $1 AND a.ended_at IS NULL) THEN
            problem := format(
                'the source %s is a table that was adopted, whose rows are its records: change the row, or choose '
                'another source', source);
        END IF;
    END IF;
    IF problem IS NULL AND is_named THEN
        problem := CASE
            WHEN tenant <> '' AND source !~ '^[a-z][a-z0-9_-]{0,62}$' THEN format(
                'the source %s is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter',
                @schema.shown(source))
            WHEN tenant <> '' OR reason IS NULL THEN @schema.unfit(tenant, key)
            ELSE @schema.unfit('-', key)
        END;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
END
$$;

COMMENT ON FUNCTION @schema.refuse_record IS
    'Refuse a record that is not allowed. It is called where `is_allowed` does not say so.';

-- For messages: without what would begin a new line, or colour a terminal.
CREATE FUNCTION @schema.shown(text) RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN quote_literal(regexp_replace(left($1, 20), '@control', '?', 'g'));

-- It has its owner's rights and the writer's search path. So each name says its schema, and there is no operator, nor
-- IS DISTINCT FROM, which looks for one. Of a row that is new, OLD has only nulls.
CREATE FUNCTION @schema.stamp_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    -- Nobody reads what no criterion matched.
    IF pg_catalog.texteq(OLD.tenant, '') AND pg_catalog.texteq(NEW.tenant, '') THEN
        NEW.xid := OLD.xid;
        NEW.id := OLD.id;
        NEW.revision := OLD.revision;
        RETURN NEW;
    END IF;
    -- The list guards against a mistake, and not against a writer who sets it: who may write records may change any.
    IF @schema.is_allowed(
        NEW.source, NEW.tenant, NEW.key, NEW.document, pg_catalog.current_setting('taskbridge.adopted', true)
    ) IS NOT TRUE THEN
        PERFORM @schema.refuse_record(
            NEW.source, NEW.tenant, NEW.key, NEW.document, NEW.deleted, NEW.reason, OLD.id IS NULL,
            (pg_catalog.texteq(NEW.source, OLD.source) AND pg_catalog.texteq(NEW.tenant, OLD.tenant)
                AND pg_catalog.texteq(NEW.key, OLD.key)) IS NOT TRUE);
    END IF;
    NEW.xid := pg_catalog.pg_current_xact_id();
    NEW.id := @schema.next_id(NEW.source);
    NEW.revision := @schema.next_revision(OLD.revision);
    NEW.changed_at := CASE WHEN OLD.id IS NULL THEN NEW.changed_at ELSE pg_catalog.now() END;
    RETURN NEW;
END
$$;

CREATE FUNCTION @schema.taskbridge_check_cluster() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fits boolean;
    adopted text;
BEGIN
    -- The setting spares `stamp_record` a query for each row. It begins with the schema, since there may be several.
    SELECT bool_and(c.system_identifier = s.system_identifier),
           set_config('taskbridge.adopted', concat(
               @name, ', ', (SELECT string_agg(a.source, ', ') FROM @schema.adopted a WHERE a.ended_at IS NULL), ','
           ), true)
    INTO fits, adopted
    FROM @schema.taskbridge_cluster c, pg_control_system() s;
    IF fits IS NOT TRUE THEN
        RAISE EXCEPTION 'the database was restored into another cluster, where its transaction ids mean nothing'
            USING ERRCODE = 'TB001', HINT = 'Stop all workers and producers, and run: taskbridge migrate --rebase';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION @schema.unfit(tenant text, key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN tenant = '' THEN 'the tenant is empty: pass the key of the business that the work belongs to'
    WHEN char_length(tenant) > 200 OR tenant ~ '@control' THEN
        'the tenant ' || @schema.shown(tenant) || ' is not allowed: use 1 to 200 characters, none of them a control '
        'character'
    WHEN tenant ~ '^@space|@space$' THEN 'the tenant ' || @schema.shown(tenant) || ' begins or ends with space: strip it'
    WHEN key = '' OR char_length(key) > 200 OR key ~ '@control' THEN
        'tenant ' || @schema.shown(tenant) || ': the key ' || @schema.shown(key) || ' is not allowed: use 1 to 200 '
        'characters, none of them a control character'
END;

COMMENT ON FUNCTION @schema.unfit IS 'Why a tenant, or a key, is not allowed; null: both are.';

CREATE TABLE @schema.adopted (
    source text COLLATE "C" NOT NULL,
    relation regclass NOT NULL,
    name text NOT NULL,
    tenant_column text NOT NULL,
    key_columns text[] NOT NULL,
    watched_columns text[],
    digest text NOT NULL,
    version bigint NOT NULL DEFAULT @schema.next_revision(NULL),
    adopted_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    backfill_after text[],
    backfill_columns text[],
    backfilled bigint NOT NULL DEFAULT 0,
    backfilled_at timestamptz,
    again_below bigint NOT NULL DEFAULT 0,
    column_numbers smallint[],
    numbered oid,
    backfill_of text NOT NULL DEFAULT 'rows',
    from_now_on boolean NOT NULL DEFAULT false,
    column_types oid[],
    column_kinds text[],
    CONSTRAINT ck_adopted_backfill_of CHECK (backfill_of IN ('rows', 'records')),
    CONSTRAINT pk_adopted PRIMARY KEY (source)
);
COMMENT ON TABLE @schema.adopted IS
    'Tables that are sources: a trigger writes their records, and a batch reads their rows.';
COMMENT ON COLUMN @schema.adopted.relation IS 'The table, whatever it is called by now; a dump has its name.';
COMMENT ON COLUMN @schema.adopted.name IS 'What it was called when it was adopted, for messages.';
COMMENT ON COLUMN @schema.adopted.watched_columns IS 'A change of these makes a record; null: of any column.';
COMMENT ON COLUMN @schema.adopted.digest IS
    'Of the statements that made the triggers: others are needed where it has changed.';
COMMENT ON COLUMN @schema.adopted.version IS
    'Another with each adoption, by which a worker sees that it knows an older one.';
COMMENT ON COLUMN @schema.adopted.ended_at IS
    'The triggers are gone; what was recorded is read from the table all the same.';
COMMENT ON COLUMN @schema.adopted.backfill_after IS
    'The row, by the unique index, or the record, by tenant and key, up to which the phase has come; null: to no row.';
COMMENT ON COLUMN @schema.adopted.backfill_columns IS
    'The columns and types of the index by which rows are taken: of another index the place says nothing.';
COMMENT ON COLUMN @schema.adopted.backfilled IS 'How many rows the backfill has looked at.';
COMMENT ON COLUMN @schema.adopted.backfilled_at IS 'When the backfill was done.';
COMMENT ON COLUMN @schema.adopted.again_below IS
    'A backfill writes records again that this transaction or an earlier one wrote.';
COMMENT ON COLUMN @schema.adopted.column_numbers IS
    'The columns of tenant and key, and those watched, whatever they are called by now.';
COMMENT ON COLUMN @schema.adopted.numbered IS
    'The table whose numbers these are: after a dump it is another, and the names count.';
COMMENT ON COLUMN @schema.adopted.backfill_of IS
    'The phase: "rows" get their records; then, where changes may have been missed, "records" may have lost their row.';
COMMENT ON COLUMN @schema.adopted.from_now_on IS
    'Somebody chose that rows which were there before get no backfill, so that nobody is reminded of it.';
COMMENT ON COLUMN @schema.adopted.column_types IS 'The types of these columns when the table was adopted.';
COMMENT ON COLUMN @schema.adopted.column_kinds IS
    'How the values of tenant and key are written as text: where that has changed, records have other keys.';

CREATE TABLE @schema.audit (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    action text NOT NULL,
    pipeline text COLLATE "C",
    tenant text COLLATE "C",
    key text COLLATE "C",
    detail text,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
COMMENT ON TABLE @schema.audit IS 'What people did, one row for each action.';
COMMENT ON COLUMN @schema.audit.who IS 'The user of the operating system, or of the page, that did it.';
COMMENT ON COLUMN @schema.audit.tenant IS 'Null: the action was about the whole pipeline.';
COMMENT ON COLUMN @schema.audit.key IS 'The record''s key; null: the action was about no single record.';
COMMENT ON COLUMN @schema.audit.detail IS 'What was given with the action, such as the reason of a pause.';

CREATE TABLE @schema.deliveries (
    id bigint GENERATED ALWAYS AS IDENTITY,
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT now(),
    token text COLLATE "C" NOT NULL,
    CONSTRAINT pk_deliveries PRIMARY KEY (id)
);
COMMENT ON TABLE @schema.deliveries IS 'The journal: one row per record that it took.';

CREATE TABLE @schema.messages (
    source text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    CONSTRAINT pk_messages PRIMARY KEY (source, key)
);
COMMENT ON TABLE @schema.messages IS
    'Ids of the messages that were recorded, so that each is once in its source, whatever tenant criteria give it.';

CREATE TABLE @schema.pauses (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    reason text,
    paused_at timestamptz NOT NULL DEFAULT now(),
    paused_by text,
    CONSTRAINT pk_pauses PRIMARY KEY (pipeline, tenant)
);
COMMENT ON TABLE @schema.pauses IS 'Tenants that an operator holds; with an empty tenant, the whole pipeline.';
COMMENT ON COLUMN @schema.pauses.paused_by IS 'Who paused it; null: it was not written down.';

CREATE TABLE @schema.pipelines (
    pipeline text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    start pg_snapshot NOT NULL DEFAULT '1:1:',
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    failed boolean NOT NULL DEFAULT false,
    succeeded_at timestamptz,
    CONSTRAINT pk_pipelines PRIMARY KEY (pipeline)
);
COMMENT ON TABLE @schema.pipelines IS
    'The pipelines that were seen: what each reads, and the snapshot at which its tenants'' cursors begin.';
COMMENT ON COLUMN @schema.pipelines.failed IS 'Something failed since succeeded_at: the next success is noted there.';
COMMENT ON COLUMN @schema.pipelines.succeeded_at IS
    'When the handler took records for the first time after something failed.';

CREATE TABLE @schema.quarantine (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    cause text NOT NULL DEFAULT 'failed',
    failing_since timestamptz,
    retry_at timestamptz,
    discarded_at timestamptz,
    CONSTRAINT ck_quarantine_cause CHECK (cause IN ('failed', 'rejected')),
    CONSTRAINT pk_quarantine PRIMARY KEY (pipeline, tenant, external_id)
);
COMMENT ON TABLE @schema.quarantine IS 'Records that cannot be handled, kept apart so that the rest go on.';
COMMENT ON COLUMN @schema.quarantine.revision IS
    'The record as it was; once it changes in the source, this row means nothing.';
COMMENT ON COLUMN @schema.quarantine.retry_at IS 'Somebody asked for another try; the tenant''s next sweep takes it.';

CREATE TABLE @schema.received (
    source text COLLATE "C" NOT NULL,
    delivery text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_received PRIMARY KEY (source, delivery)
);
COMMENT ON TABLE @schema.received IS 'Deliveries of webhooks that were taken, by their sender''s id; kept for 30 days.';

CREATE TABLE @schema.records (
    id bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    key text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    xid xid8 NOT NULL,
    document jsonb,
    deleted boolean NOT NULL DEFAULT false,
    delay_ms bigint,
    criterion text,
    reason text,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    discarded_at timestamptz,
    traceparent text COLLATE "C",
    CONSTRAINT ck_records_id CHECK (id > 0),
    CONSTRAINT ck_records_matched CHECK ((tenant = '') = (reason IS NOT NULL)),
    CONSTRAINT ck_records_traceparent CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'),
    CONSTRAINT pk_records PRIMARY KEY (source, tenant, key)
);
COMMENT ON TABLE @schema.records IS
    'The log: one row per source, tenant and key. Without a tenant: no criterion matched, and the reason.';
COMMENT ON COLUMN @schema.records.id IS
    'Rows of one transaction are read in this order; another with each change of the row.';
COMMENT ON COLUMN @schema.records.revision IS
    'Another with each change of the row, and never one again; a trigger sets it.';
COMMENT ON COLUMN @schema.records.xid IS 'The transaction that wrote the row last; a trigger sets it.';
COMMENT ON COLUMN @schema.records.document IS 'Null: the row is in the table that was adopted as the source.';
COMMENT ON COLUMN @schema.records.deleted IS 'The row is gone from the adopted table.';
COMMENT ON COLUMN @schema.records.delay_ms IS
    'Least time since the tenant''s last run, for pipelines with delays; null: the smallest that the pipeline has.';
COMMENT ON COLUMN @schema.records.changed_at IS 'When the row was written last; a trigger sets it.';
COMMENT ON COLUMN @schema.records.discarded_at IS 'No criterion matched, and somebody gave the record up.';
COMMENT ON COLUMN @schema.records.traceparent IS
    'The span that wrote the row last, as W3C''s traceparent; null: it was not traced.';

CREATE TABLE @schema.sync_cursors (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    snapshot pg_snapshot NOT NULL DEFAULT '1:1:',
    target pg_snapshot,
    at_xid xid8,
    at_id bigint,
    owner text COLLATE "C",
    sweeps bigint NOT NULL DEFAULT 0,
    runs bigint NOT NULL DEFAULT 0,
    events bigint NOT NULL DEFAULT 0,
    records bigint NOT NULL DEFAULT 0,
    burst_runs bigint NOT NULL DEFAULT 0,
    burst_events bigint NOT NULL DEFAULT 0,
    first_event_ms integer,
    last_run_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    last_error text,
    failed_at timestamptz,
    last_taken_at timestamptz,
    batch_limit integer,
    suspects integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    bursts bigint NOT NULL DEFAULT 0,
    failed_runs bigint NOT NULL DEFAULT 0,
    first_event_ms_sum bigint NOT NULL DEFAULT 0,
    first_event_counts integer[] NOT NULL DEFAULT '{}',
    deaths integer NOT NULL DEFAULT 0,
    suspect_revision bigint,
    outages integer NOT NULL DEFAULT 0,
    looked pg_snapshot,
    burst text COLLATE "C",
    found_bursts bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_sync_cursors PRIMARY KEY (pipeline, tenant)
) WITH (fillfactor='50');
COMMENT ON TABLE @schema.sync_cursors IS
    'How far each tenant''s records have been handled: all that is visible in snapshot, and of those visible in '
    'target the ones up to (at_xid, at_id).';
COMMENT ON COLUMN @schema.sync_cursors.last_taken_at IS
    'Start of the last run that took records; last_run_at is that of the last run.';
COMMENT ON COLUMN @schema.sync_cursors.batch_limit IS
    'Most records of the next batch; null: the pipeline''s batch size.';
COMMENT ON COLUMN @schema.sync_cursors.suspects IS 'Of so many next records one cannot be handled; 0: none is known.';
COMMENT ON COLUMN @schema.sync_cursors.attempts IS 'How often in a row a batch of the present size failed.';
COMMENT ON COLUMN @schema.sync_cursors.failing_since IS 'First failure of a batch that held the suspects.';
COMMENT ON COLUMN @schema.sync_cursors.first_event_counts IS
    'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';
COMMENT ON COLUMN @schema.sync_cursors.deaths IS
    'How often, beside the attempts, a run died that had the suspect alone.';
COMMENT ON COLUMN @schema.sync_cursors.suspect_revision IS 'The one suspect that attempts and deaths are counted of.';
COMMENT ON COLUMN @schema.sync_cursors.outages IS 'How many of the attempts with the suspect alone said "downstream".';
COMMENT ON COLUMN @schema.sync_cursors.looked IS
    'What was visible when the last run claimed the cursor: that run reads it.';
COMMENT ON COLUMN @schema.sync_cursors.burst IS 'The last burst: the token of its first run.';
COMMENT ON COLUMN @schema.sync_cursors.found_bursts IS
    'Bursts beside `bursts` that the change poller began: no event had come when their first run claimed the cursor.';

CREATE TABLE @schema.record_versions (
    source text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version numeric NOT NULL,
    CONSTRAINT pk_record_versions PRIMARY KEY (source, tenant, key)
);
COMMENT ON TABLE @schema.record_versions IS
    'The newest version of a record that a webhook brought; it goes with the record.';

CREATE TABLE @schema.run_minutes (
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
COMMENT ON TABLE @schema.run_minutes IS 'Sums of the run history for each minute in which runs ended.';
COMMENT ON COLUMN @schema.run_minutes.run_ms IS 'How long the runs took together, in milliseconds.';
COMMENT ON COLUMN @schema.run_minutes.first_event_counts IS
    'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';

CREATE TABLE @schema.runs (
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
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
    CONSTRAINT pk_runs PRIMARY KEY (pipeline, tenant, token, ended_at)
) PARTITION BY RANGE (ended_at);
COMMENT ON TABLE @schema.runs IS
    'The run history: a row for each run that took records, had events or failed, in a partition for each day (UTC).';
COMMENT ON COLUMN @schema.runs.ended_at IS
    'When it advanced last, or failed. That a run died is written down by the one after it.';
COMMENT ON COLUMN @schema.runs.events IS
    'Events since the run before it began. Those of a run that died after the first of its burst are on the cursor alone.';
COMMENT ON COLUMN @schema.runs.burst_run IS 'Which run of its burst it was; 0: what a run did after its first row.';
COMMENT ON COLUMN @schema.runs.rejected IS 'Records that went to quarantine, of those that it took.';
COMMENT ON COLUMN @schema.runs.first_event_ms IS 'Milliseconds from the burst''s first event to the first delivery.';
COMMENT ON COLUMN @schema.runs.reason IS
    'Why it began: event (the first of a burst), burst (more events), record (records without an event), more '
    '(records were left, or a wait was over), retry (a run failed), died (the run before did not end), probe (of the '
    'circuit), unknown (it did not end, and was replaced).';
COMMENT ON COLUMN @schema.runs.outcome IS
    'handled, failed, or waited: it took no record, since it was told to wait, paused, or handed back.';
COMMENT ON COLUMN @schema.runs.snapshot IS
    'Where the cursor stood when it ended: this, target, at_xid and at_id as in sync_cursors. Null: before a rebase.';

CREATE TABLE @schema.runs_other PARTITION OF @schema.runs DEFAULT;
COMMENT ON TABLE @schema.runs_other IS 'Runs of days that have no partition, as where no worker could make it.';

CREATE TABLE @schema.tails (
    pipeline text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    snapshot pg_snapshot NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_tails_kind CHECK (kind IN ('tail', 'base')),
    CONSTRAINT pk_tails PRIMARY KEY (pipeline, kind)
) WITH (fillfactor='50');
COMMENT ON TABLE @schema.tails IS
    'How far the change poller (kind tail) and the reconciler (kind base) of a pipeline have read. Every tenant with a '
    'record that the first snapshot sees was reminded, or had a run that read it. What the second sees, every cursor '
    'has handled.';
COMMENT ON COLUMN @schema.tails.stored_at IS
    'When a worker last stored the snapshot; the poller stores one every few seconds even if nothing is new.';

CREATE TABLE @schema.taskbridge_cluster (
    system_identifier bigint NOT NULL
);
-- A restore of data alone adds a row, maybe an equal one, so it has no key. It may be published all the same.
ALTER TABLE @schema.taskbridge_cluster REPLICA IDENTITY FULL;
INSERT INTO @schema.taskbridge_cluster SELECT system_identifier FROM pg_control_system();
COMMENT ON TABLE @schema.taskbridge_cluster IS 'The cluster whose transaction ids the records and cursors hold.';

-- Until a pipeline that reads them is known, invoices wait for the built-in journal.
CREATE VIEW @schema.record_states AS
SELECT p.pipeline, r.tenant, r.key AS external_id,
       CASE
           WHEN q.retry_at IS NOT NULL THEN 'pending'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
           WHEN q.external_id IS NOT NULL THEN 'quarantined'
           WHEN @schema.is_handled(r.xid, r.id, coalesce(c.snapshot, p.start), c.target, c.at_xid, c.at_id) THEN 'handled'
           ELSE 'pending'
       END AS state
FROM (
    SELECT pipeline, source, start FROM @schema.pipelines
    UNION ALL
    SELECT 'invoices', 'invoices', '1:1:'::pg_snapshot
    WHERE NOT EXISTS (SELECT FROM @schema.pipelines WHERE source = 'invoices')
) p
JOIN @schema.records r ON r.source = p.source AND r.tenant <> ''
LEFT JOIN @schema.sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = r.tenant
LEFT JOIN @schema.quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision;

COMMENT ON VIEW @schema.record_states IS
    'Per pipeline and record: pending, handled (also: older than the pipeline''s start), quarantined, or discarded.';

CREATE INDEX ix_deliveries_pipeline_tenant_external_id ON @schema.deliveries (pipeline, tenant, external_id);
CREATE INDEX ix_quarantine_failed ON @schema.quarantine (pipeline, quarantined_at) WHERE cause = 'failed';
CREATE INDEX ix_quarantine_open ON @schema.quarantine (pipeline, tenant) WHERE discarded_at IS NULL AND retry_at IS NULL;
CREATE INDEX ix_quarantine_retry ON @schema.quarantine (pipeline, tenant) WHERE retry_at IS NOT NULL;
CREATE INDEX ix_received_received_at ON @schema.received (received_at);
CREATE INDEX ix_records_source_tenant_xid_id ON @schema.records (source, tenant, xid, id);
CREATE INDEX ix_records_source_xid_id ON @schema.records (source, xid, id) WHERE id > 0;
CREATE INDEX ix_records_unmatched ON @schema.records (source, id) WHERE tenant = '';
CREATE INDEX ix_runs_failed ON @schema.runs (pipeline, ended_at, token) WHERE outcome = 'failed';
CREATE INDEX ix_runs_pipeline_ended_at ON @schema.runs (pipeline, ended_at, token);
CREATE INDEX ix_sync_cursors_failing ON @schema.sync_cursors (pipeline, tenant) WHERE failures > 0;

CREATE TRIGGER number_columns
    BEFORE INSERT OR UPDATE OF relation, tenant_column, key_columns, watched_columns ON @schema.adopted
    FOR EACH ROW EXECUTE FUNCTION @schema.number_columns();

CREATE TRIGGER records_changed BEFORE UPDATE ON @schema.records FOR EACH ROW
    WHEN (
        OLD.* IS DISTINCT FROM NEW.*
        AND (current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on' OR NOT @schema.owns_records())
    )
    EXECUTE FUNCTION @schema.stamp_record();
ALTER TABLE @schema.records ENABLE ALWAYS TRIGGER records_changed;

CREATE TRIGGER records_in_cluster BEFORE INSERT OR UPDATE ON @schema.records
    FOR EACH STATEMENT EXECUTE FUNCTION @schema.taskbridge_check_cluster();

CREATE TRIGGER records_written BEFORE INSERT ON @schema.records FOR EACH ROW
    WHEN (current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on' OR NOT @schema.owns_records())
    EXECUTE FUNCTION @schema.stamp_record();
ALTER TABLE @schema.records ENABLE ALWAYS TRIGGER records_written;

REVOKE ALL ON FUNCTION @schema.keep_runs(days integer) FROM PUBLIC;
