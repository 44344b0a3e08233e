-- The journal: the batch's records were delivered, in the transaction that advances the cursor.
INSERT INTO {schema}.deliveries (pipeline, tenant, external_id, revision, token)
SELECT %(pipeline)s, %(tenant)s, record.external_id, record.revision, %(token)s
FROM unnest(%(external_ids)s::text[], %(revisions)s::bigint[]) AS record (external_id, revision)
