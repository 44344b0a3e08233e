-- Sets parameters of Postgres for the transaction, all in one round trip.
SELECT set_config(one.name, one.value, true) FROM unnest(%(names)s::text[], %(values)s::text[]) AS one (name, value)
