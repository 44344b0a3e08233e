-- In which database of which cluster a session is, and what its unqualified names mean.
SELECT system_identifier::text, current_database(), current_setting('search_path')
FROM pg_control_system()
