-- How long a statement of this session may take, in milliseconds; 0: any time.
SELECT setting FROM pg_settings WHERE name = 'statement_timeout'
