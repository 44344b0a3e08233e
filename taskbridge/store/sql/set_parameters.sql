-- Sets parameters of Postgres, for the transaction or the session, all in one round trip. One with a value in `only_from` is set only
-- where it still has that value: whoever has set another one keeps it.
SELECT set_config(one.name, one.value, %(locally)s)
FROM unnest(%(names)s::text[], %(values)s::text[], %(only_from)s::text[]) AS one (name, value, only_from)
WHERE one.only_from IS NULL OR current_setting(one.name, true) = one.only_from
