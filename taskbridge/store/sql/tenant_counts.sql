-- Per tenant of a pipeline: records by state, and the counters of its cursor. Tenants without records or cursor: none.
SELECT coalesce(s.tenant, c.tenant) AS tenant,
       coalesce(s.pending, 0) AS pending,
       coalesce(s.handled, 0) AS handled,
       coalesce(s.quarantined, 0) AS quarantined,
       coalesce(s.discarded, 0) AS discarded,
       coalesce(c.events, 0) AS events,
       coalesce(c.runs, 0) AS runs,
       coalesce(c.sweeps, 0) AS sweeps,
       coalesce(c.records, 0) AS records,
       coalesce(c.burst_events, 0) AS burst_events,
       coalesce(c.burst_runs, 0) AS burst_runs,
       c.first_event_ms,
       c.last_run_at,
       c.last_taken_at,
       coalesce(c.failures, 0) AS failures,
       c.last_error,
       c.failing_since
FROM (
    SELECT tenant,
           count(*) FILTER (WHERE state = 'pending') AS pending,
           count(*) FILTER (WHERE state = 'handled') AS handled,
           count(*) FILTER (WHERE state = 'quarantined') AS quarantined,
           count(*) FILTER (WHERE state = 'discarded') AS discarded
    FROM record_states
    WHERE pipeline = %(pipeline)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    GROUP BY tenant
) s
FULL JOIN (
    SELECT * FROM sync_cursors
    WHERE pipeline = %(pipeline)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
) c ON c.tenant = s.tenant
ORDER BY 1
