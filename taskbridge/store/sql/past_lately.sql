-- Whether any run ended within the last seconds; null where there is no history.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.runs)
    THEN EXISTS (SELECT FROM {schema}.runs WHERE ended_at >= now() - %(seconds)s * interval '1 second')
END
