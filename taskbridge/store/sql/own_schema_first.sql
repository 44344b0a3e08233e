-- The database, as SQL writes it, where unqualified names of this role are first those of a schema that is called as the role is.
-- No row: they are not.
SELECT quote_ident(current_database()) WHERE current_schema() = current_user
