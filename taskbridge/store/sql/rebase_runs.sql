-- Places of the run history are in ids of the former cluster and say nothing here.
UPDATE {schema}.runs SET snapshot = NULL, target = NULL, at_xid = NULL, at_id = NULL WHERE snapshot IS NOT NULL
