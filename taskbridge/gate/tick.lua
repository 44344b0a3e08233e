-- Which tenants should a ticker start now, and when should it tick again? One ticker at a time gets them, or all would do the
-- same work. None gets any while enough runs are queued: tenants in the sorted set keep their order and need no message.
-- USES: timekeeping in_flight
-- KEYS: due in_flight_due ticking fair_queue
-- ARGV: limit:number most_in_flight:number ticker hold_ms:number now_ms
-- RETURNS: {wait_ms, late_ms, turns, unpack(tenants)}: milliseconds until the next tick, and since the oldest passed deadline,
-- each -1 if there is none; how many tenants wait for their turn; and which tenants are due

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
  -- The end is stored in the value: a server whose clock is behind would keep the key for longer.
  local holder, ends = string.match(redis.call("GET", ticking_key) or "", "^(%S+) (%d+)$")
  if holder and holder ~= ticker and tonumber(ends) > now or count_in_flight(in_flight_due_key, false, now) >= most_in_flight then
    wait_ms, tenants = hold_ms, {}
  else
    late_ms = now - first[2]
    redis.call("SET", ticking_key, ticker .. " " .. string.format("%.0f", now + hold_ms), "PX", hold_ms)
  end
end
local turns = redis.call("ZCARD", fair_queue_key)
return { wait_ms, late_ms, turns, unpack(tenants) }
