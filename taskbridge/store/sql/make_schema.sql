-- The schema in which all tables of ours lie.
CREATE SCHEMA {schema}
