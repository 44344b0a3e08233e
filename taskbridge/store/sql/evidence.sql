-- A record failed alone as often as it may. Whose fault is it? `others_succeed`: something of the pipeline was handled
-- since the tenant's failure before this one. `in_a_row`: how many records went to quarantine for failing since anything
-- was handled.
SELECT EXISTS (
           SELECT FROM {schema}.sync_cursors o WHERE o.pipeline = c.pipeline AND o.succeeded_at > c.failed_at
       ) AS others_succeed,
       (
           SELECT count(*) FROM {schema}.quarantine q
           WHERE q.pipeline = c.pipeline AND q.cause = 'failed' AND q.quarantined_at > coalesce(
               (SELECT max(o.succeeded_at) FROM {schema}.sync_cursors o WHERE o.pipeline = c.pipeline), '-infinity'
           )
       ) AS in_a_row
FROM {schema}.sync_cursors c
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s
