-- Sets a parameter of Postgres for the session or, where `scope` is LOCAL, for the transaction. It is no `set_config`: a SET takes
-- no snapshot, so that BEGIN may name another isolation level after it, and what follows a LOCK sees what that has waited for.
SET {scope} {name} = {value}
