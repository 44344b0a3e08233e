-- How a handler left its transaction: the mark of `announce.sql`, if it is still that transaction, and whether its commit waits for
-- the disk, which is the handler's to choose.
SELECT pg_catalog.current_setting('taskbridge.batch', true), pg_catalog.current_setting('synchronous_commit')
