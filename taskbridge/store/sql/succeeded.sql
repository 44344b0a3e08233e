-- Records of the pipeline were handled, the first since something of it failed. `evidence.sql` needs this time only: it is
-- later than every failure before it. So a pipeline has one row for it, which is written once after a failure and not with
-- every batch. It is written outside the batch's transaction, whose process may freeze and would hold the row. A trial leaves
-- `failed` set, because its own record may go to quarantine after it.
UPDATE {schema}.pipelines
SET succeeded_at = clock_timestamp(), failed = %(trial)s
WHERE pipeline = %(pipeline)s AND failed
