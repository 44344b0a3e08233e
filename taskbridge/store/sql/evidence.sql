-- A record failed alone as often as it may: is it the record, or does everything fail? `others_succeed`: something of the
-- pipeline was handled since the tenant's failure before this one. `in_a_row`: how many records went to quarantine because they
-- failed, up to 100, since anything was handled. `succeeded.sql` says why no other cursor is read.
SELECT coalesce(p.succeeded_at > c.failed_at, false) AS others_succeed,
       (
           SELECT count(*)
           FROM (
               SELECT FROM {schema}.quarantine q
               WHERE q.pipeline = c.pipeline AND q.cause = 'failed'
                 AND q.quarantined_at > coalesce(p.succeeded_at, '-infinity')
               LIMIT 100
           ) counted
       ) AS in_a_row
FROM {schema}.sync_cursors c
LEFT JOIN {schema}.pipelines p ON p.pipeline = c.pipeline
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s
