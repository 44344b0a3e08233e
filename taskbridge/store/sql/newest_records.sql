-- The newest record of each pipeline with criteria. It stays: a pipeline whose cursors are left without any record would
-- look like one that reads invoices.
SELECT max(id) FROM records GROUP BY pipeline
