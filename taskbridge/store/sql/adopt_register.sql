-- What is adopted, for workers and for the doctor. Of a table that was given up, or that takes the place of another, changes were
-- missed: a backfill writes its records again.
INSERT INTO {schema}.adopted AS a (source, relation, name, tenant_column, key_columns, watched_columns, digest)
VALUES ({source}, {table_name}::regclass, {table_name}, {tenant_name}, {key_names}, {watched_names}, {digest})
ON CONFLICT (source) DO UPDATE
SET relation = excluded.relation, name = excluded.name, tenant_column = excluded.tenant_column,
    key_columns = excluded.key_columns, watched_columns = excluded.watched_columns, digest = excluded.digest,
    version = DEFAULT, adopted_at = now(), ended_at = NULL,
    backfill_after = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfill_after END,
    backfilled = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfilled ELSE 0 END,
    backfilled_at = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfilled_at END,
    from_now_on = a.from_now_on AND a.ended_at IS NULL AND a.relation = excluded.relation,
    again_below = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.again_below
                       ELSE nextval('{schema}.revisions') END
