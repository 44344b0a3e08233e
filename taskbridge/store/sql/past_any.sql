-- Whether the run history has any run.
SELECT EXISTS (SELECT FROM {schema}.runs)
