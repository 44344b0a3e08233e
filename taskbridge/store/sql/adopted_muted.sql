-- A part of the trigger function of an adopted table: what `announce.sql` has set, read once in a statement.
(SELECT current_setting('taskbridge.muted', true))
