-- What the scripts need of the server and of its Lua, so that a store that lacks a part of it is refused before it holds a gate.
-- KEYS: probe
-- ARGV: now_ms
-- RETURNS: {passed}: 1, unless something does not work as in Redis

local text = string.format("%016.0f", us)
redis.call("HSET", probe_key, "json", cjson.encode({ text, now }), "packed", cmsgpack.pack({ text, {} }))
local json, packed, missing = unpack(redis.call("HMGET", probe_key, "json", "packed", "missing"))
redis.call("DEL", probe_key)
redis.call("ZADD", probe_key, now, text)
redis.call("ZADD", probe_key, "LT", now + 1, text)
redis.call("PEXPIRE", probe_key, GRACE_MS)
local first = redis.call("ZRANGE", probe_key, 0, 0, "WITHSCORES")
local works = cjson.decode(json)[2] == now and cmsgpack.unpack(packed)[1] == text and missing == false
  and first[1] == text and tonumber(first[2]) == now
return { works and 1 or 0 }
