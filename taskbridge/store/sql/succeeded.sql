-- Records of the pipeline were handled, the first since something of it failed. That moment is all that `evidence.sql` has
-- to know: it is later than each failure that came before it, and so is every later one. So a pipeline keeps it in one
-- row, which is written once after a failure, and not with every batch. It is no part of a batch's transaction, whose
-- process may freeze and hold the row. A trial leaves `failed`, for its own record may go to quarantine after it.
UPDATE {schema}.pipelines
SET succeeded_at = clock_timestamp(), failed = %(trial)s
WHERE pipeline = %(pipeline)s AND failed
