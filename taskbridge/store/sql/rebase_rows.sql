-- Rows with a transaction id that this cluster has not finished get 3, the first that a cluster gives, which it has. They were
-- written by many transactions and count as written by one, so their ids must differ: they are numbered anew, in their order.
-- Revisions stay; those that come are of a later time.
UPDATE {schema}.records r
SET xid = '3', id = n.id
FROM (
    SELECT o.source, o.tenant, o.key, (SELECT {schema}.next_id('')) + row_number() OVER (ORDER BY o.xid, o.id) AS id
    FROM {schema}.records o
    WHERE o.xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
) n
WHERE r.source = n.source AND r.tenant = n.tenant AND r.key = n.key
