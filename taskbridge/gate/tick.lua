-- Which tenants a ticker should start now, and when to look again? One ticker at a time is told, or all would do the same.
-- None is told while enough runs are queued: tenants that wait in the sorted set keep their order and cost no message.
-- KEYS: due sent ticking turns
-- ARGV: limit most_queued ticker hold_ms now_ms
-- RETURNS: {wait_ms, late_ms, turns, unpack(tenants)}: milliseconds until it is worth looking again, and since the oldest
-- deadline that passed, each -1 if there is none; how many wait for their turn; and who is due
local due_key, sent_key, ticking_key, turns_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit, most_queued, ticker, hold_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local us = clock_us(ARGV[5])
local now = milliseconds(us)

keep_time(us)
local first = redis.call("ZRANGE", due_key, 0, limit, "WITHSCORES")
local wait_ms, late_ms, tenants = -1, -1, {}
for at = 1, #first, 2 do
  local ahead = first[at + 1] - now
  if ahead > 0 then
    wait_ms = ahead
    break
  end
  tenants[#tenants + 1] = first[at]
end
if #tenants > limit then
  tenants[#tenants] = nil
end
if #tenants > 0 then
  -- Its end stands in the value: a server whose clock is behind would keep the key for longer.
  local holder, ends = string.match(redis.call("GET", ticking_key) or "", "^(%S+) (%d+)$")
  if holder and holder ~= ticker and tonumber(ends) > now or queued(sent_key, now) >= most_queued then
    wait_ms, tenants = hold_ms, {}
  else
    late_ms = now - first[2]
    redis.call("SET", ticking_key, ticker .. " " .. string.format("%.0f", now + hold_ms), "PX", hold_ms)
  end
end
local turns = redis.call("ZCARD", turns_key)
return { wait_ms, late_ms, turns, unpack(tenants) }
