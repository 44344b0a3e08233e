-- How many records may be handed over now, under a limit of the pipeline and one of the tenant? With none, the first of
-- them are paid for ahead, so that those who wait are served in the order in which they asked.
-- Each limit is a virtual clock (GCRA): `tat` is when, in microseconds, all that was permitted is worked off.
-- KEYS: runner pipeline_rate tenant_rate
-- ARGV: token wanted at_least pipeline_us pipeline_burst tenant_us tenant_burst now_ms
-- RETURNS: {permitted, wait_ms}; a limit whose microseconds per record are 0 is none
local runner_key, token, wanted, at_least = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limits = {
  { key = KEYS[2], us = tonumber(ARGV[4]), burst = tonumber(ARGV[5]) },
  { key = KEYS[3], us = tonumber(ARGV[6]), burst = tonumber(ARGV[7]) },
}
local now = clock_us(ARGV[8])

local runner = redis.call("HMGET", runner_key, "token", "permits")
local current, paid = runner[1], tonumber(runner[2])
if current ~= token then
  return { 0, 0 }
end
if paid then
  redis.call("HDEL", runner_key, "permits")
  return { math.min(paid, wanted), 0 }
end

local permitted = wanted
for _, limit in ipairs(limits) do
  if limit.us > 0 then
    limit.tat = math.max(tonumber(redis.call("GET", limit.key) or 0), now)
    permitted = math.min(permitted, math.floor((now + limit.burst * limit.us - limit.tat) / limit.us))
  end
end
permitted = math.max(permitted, 0)
local charged, wait_us = permitted, 0
if permitted == 0 then
  charged = math.min(wanted, at_least)
  redis.call("HSET", runner_key, "permits", charged)
end
for _, limit in ipairs(limits) do
  if limit.us > 0 then
    local tat = limit.tat + charged * limit.us
    redis.call("SET", limit.key, string.format("%.0f", tat), "PX", math.ceil((tat - now) / 1000) + 1000)
    wait_us = math.max(wait_us, tat - limit.burst * limit.us - now)
  end
end
return { permitted, permitted == 0 and math.ceil(wait_us / 1000) or 0 }
