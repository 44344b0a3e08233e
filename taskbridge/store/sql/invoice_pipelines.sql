-- Pipelines that have read invoices, as the view record_states sees them.
SELECT DISTINCT s.pipeline
FROM sync_cursors s
WHERE NOT EXISTS (SELECT FROM records n WHERE n.pipeline = s.pipeline)
