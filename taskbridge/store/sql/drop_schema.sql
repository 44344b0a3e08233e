-- Everything of ours goes.
DROP SCHEMA {schema} CASCADE
