-- What is adopted, for workers and for the doctor. Of a table that was given up, that takes the place of another, or of which a
-- trigger did not fire, here or on one of its partitions, changes were missed: a backfill writes its records again. What a
-- TRUNCATE deletes is not looked for: a partition that was attached lacks that trigger alone. The same holds where the keys of its
-- records are others now, and where a trigger could not say what had changed. A transaction of another isolation level the triggers as they were before it waited for its locks, so it cannot tell.
INSERT INTO {schema}.adopted AS a (source, relation, name, tenant_column, key_columns, watched_columns, digest, column_kinds)
VALUES ({source}, {table_name}::regclass, {table_name}, {tenant_name}, {key_names}, {watched_names}, {digest}, {kinds})
ON CONFLICT (source) DO UPDATE
SET relation = excluded.relation, name = excluded.name, tenant_column = excluded.tenant_column,
    key_columns = excluded.key_columns, watched_columns = excluded.watched_columns, digest = excluded.digest, column_kinds = excluded.column_kinds,
    version = DEFAULT, adopted_at = now(), ended_at = NULL,
    (backfill_after, backfilled, backfilled_at, from_now_on, again_below) = (
        SELECT CASE WHEN c.all_seen THEN a.backfill_after END,
               CASE WHEN c.all_seen THEN a.backfilled ELSE 0 END,
               CASE WHEN c.all_seen THEN a.backfilled_at END,
               c.all_seen AND a.from_now_on,
               CASE WHEN c.all_seen THEN a.again_below ELSE pg_current_xact_id()::text::bigint END
        FROM (
            SELECT current_setting('transaction_isolation') = 'read committed'
            AND a.ended_at IS NULL AND a.relation = excluded.relation AND NOT EXISTS (
                SELECT FROM unnest({row_triggers}) r (name)
                LEFT JOIN pg_trigger t ON t.tgrelid = excluded.relation AND t.tgname = r.name
                WHERE t.tgenabled IS DISTINCT FROM 'A'
            ) AND NOT EXISTS (
                SELECT FROM pg_partition_tree(excluded.relation) p
                JOIN pg_trigger t ON t.tgrelid = p.relid
                WHERE t.tgparentid <> 0 AND t.tgname = ANY ({row_triggers}) AND t.tgenabled <> 'A'
            ) AND NOT EXISTS (
                SELECT FROM unnest(
                    a.column_numbers[:{keys}], excluded.column_numbers[:{keys}], a.column_kinds, excluded.column_kinds
                ) k (was_column, is_column, was_kind, is_kind)
                WHERE a.numbered = excluded.relation::oid AND k.was_column IS DISTINCT FROM k.is_column
                   OR k.was_kind <> k.is_kind AND (k.is_kind <> 'text' OR split_part(k.was_kind, '(', 1) IN ('date', 'timestamp', 'timestamptz'))
            ) AND NOT EXISTS (
                SELECT FROM {schema}.records r
                WHERE r.source = {source} AND r.tenant = '' AND r.key > 'columns changed, ' AND r.key < 'columns changed-'
                  AND r.discarded_at IS NULL
            ) AS all_seen
        ) c
    )
