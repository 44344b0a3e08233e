-- The documents of some records that `read_batch.sql` left out for their size. A record that was changed or deleted since is
-- missing: its new revision lies behind the cursor.
SELECT i.id, i.document::text
FROM {rows} i
WHERE i.id = ANY(%(ids)s) AND i.revision = ANY(%(revisions)s)
