-- Publish a probe as the run of a first event is published, so that `taskbridge doctor` sees whether a worker takes it.
-- KEYS: queue
-- ARGV: pipeline tenant token now_ms
-- RETURNS: {text}: the message as it lies in the queue, if the script published it
local queue_key = KEYS[1]
local pipeline, tenant, token, us = ARGV[1], ARGV[2], ARGV[3], clock_us(ARGV[4])

publish(queue_key, pipeline, tenant, token, us)
local text = redis.call("LINDEX", queue_key, 0)
return { text }
