-- The documents of some records that `read_batch.sql` left out for their size. A record that was changed or deleted since is
-- missing: its new revision lies behind the cursor. `adopted` is as in `read_batch.sql`.
SELECT r.id, d.text, d.deleted,
       (SELECT {adoption_version} FROM {schema}.adopted a LEFT JOIN pg_class c ON c.oid = a.relation WHERE a.source = %(source)s) AS adopted
FROM (
    SELECT i.*, i.key AS external_id
    FROM unnest(%(xids)s::xid8[], %(ids)s::bigint[]) AS one (xid, id)
    JOIN {schema}.records i
        ON i.source = %(source)s AND i.tenant = %(tenant)s AND i.xid = one.xid AND i.id = one.id
) r
CROSS JOIN LATERAL {document} d
