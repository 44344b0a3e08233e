-- A part of other queries: the records of a tenant that lie after a cursor, by (xid, id). `p` is the cursor (snapshot;
-- target, at_xid and at_id: where it stands in the middle of a sweep), with its tenant and the most rows, `size`.
-- "Not visible in a snapshot" is: one of the transactions that were on when it was taken, or a later one. So it is two
-- ranges of one index, one after the other. A range from the oldest transaction that was on would read all that was
-- committed since that one began. The index over all tenants has a condition that is not said here: where the planner's
-- statistics are old, it would take that one and read what all tenants have.
(
    (
        SELECT i.*
        FROM pg_snapshot_xip(p.snapshot) x (xid)
        CROSS JOIN LATERAL (
            SELECT l.*
            FROM {schema}.records l
            WHERE l.source = %(source)s AND l.tenant = p.tenant AND l.xid = x.xid
              AND l.id > CASE WHEN x.xid = p.at_xid THEN p.at_id ELSE -1 END
            ORDER BY l.id
            LIMIT p.size
        ) i
        WHERE x.xid >= coalesce(p.at_xid, '0'::xid8)
          AND (p.target IS NULL OR pg_visible_in_snapshot(x.xid, p.target))
        ORDER BY i.xid, i.id
        LIMIT p.size
    )
    UNION ALL
    (
        SELECT i.*
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.tenant = p.tenant
          AND (i.xid, i.id) > (
              greatest(p.at_xid, pg_snapshot_xmax(p.snapshot)),
              CASE WHEN p.at_xid >= pg_snapshot_xmax(p.snapshot) THEN p.at_id ELSE -1 END
          )
          AND i.xid < coalesce(pg_snapshot_xmax(p.target), '18446744073709551615'::xid8)
          AND (p.target IS NULL OR pg_visible_in_snapshot(i.xid, p.target))
        ORDER BY i.xid, i.id
        LIMIT p.size
    )
    LIMIT p.size
)
