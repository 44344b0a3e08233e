-- The trigger fires also where a session, or logical replication, plays the rows of another server.
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}
