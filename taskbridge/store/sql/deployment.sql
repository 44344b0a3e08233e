-- Which database of which cluster this is. A renamed database, or a standby that was promoted, stays the same.
SELECT c.system_identifier AS cluster, d.oid, d.datname AS name
FROM pg_control_system() c, pg_database d
WHERE d.datname = current_database()
