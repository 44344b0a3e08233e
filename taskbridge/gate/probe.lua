-- Publish a probe the way the run of a first event is published, so that `taskbridge doctor` sees whether a worker takes it.
-- KEYS: queue
-- ARGV: pipeline tenant token now_ms
-- RETURNS: {text}: the message as it is in the queue, if the script published it

publish(queue_key, pipeline, tenant, token, us)
local text = redis.call("LINDEX", queue_key, 0)
return { text }
