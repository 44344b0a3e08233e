-- Whether triggers of an adopted table found its columns changed (see `adopted_missed.sql`).
SELECT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = %(source)s AND r.tenant = '' AND r.key > 'columns changed, ' AND r.key < 'columns changed-'
      AND r.discarded_at IS NULL
)
