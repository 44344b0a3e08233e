-- A table is given up: it loses a trigger.
DROP TRIGGER IF EXISTS {trigger} ON {table}
