-- Whose turn is it? Changes nothing that others see.
-- KEYS: turns handed
-- ARGV: limit now_ms
-- RETURNS: {handed, unpack(members)}: how many were given their turn and have not begun, and who is next, each as
-- `{pipeline}:{tenant}`
local turns_key, handed_key = KEYS[1], KEYS[2]
local limit, us = tonumber(ARGV[1]), clock_us(ARGV[2])

local members = {}
if limit > 0 then
  members = redis.call("ZRANGE", turns_key, 0, limit - 1)
end
local handed = queued(handed_key, milliseconds(us))
return { handed, unpack(members) }
