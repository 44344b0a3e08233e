-- Sources in which a message with this id was recorded.
SELECT source FROM {schema}.messages WHERE key = %(key)s AND source = ANY (%(sources)s::text[])
