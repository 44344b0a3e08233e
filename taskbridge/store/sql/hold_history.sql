-- Whether somebody keeps the run history locked: then this fails.
LOCK TABLE {schema}.runs IN ROW EXCLUSIVE MODE NOWAIT
