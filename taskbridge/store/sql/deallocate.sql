-- Forget a prepared statement of a handler's.
DEALLOCATE {name}
