-- How many records may be delivered now, in one call, under the limits of the pipeline and of the tenant, in records and in
-- calls? If none, the first ones are charged in advance, so that waiting tenants are served in the order in which they asked.
-- With `at_least` 0 the call is made in any case: it is charged, and later calls wait longer. Each limit is a virtual clock
-- (GCRA): its key has the microsecond by which everything permitted so far fits the rate.
-- KEYS: runner pipeline_rate tenant_rate pipeline_calls tenant_calls
-- ARGV: token wanted:number at_least:number pipeline_us:number pipeline_burst:number tenant_us:number
--   tenant_burst:number pipeline_call_us:number pipeline_call_burst:number tenant_call_us:number
--   tenant_call_burst:number now_ms
-- RETURNS: {permitted, wait_ms}, both 0 if another run took over; 0 microseconds per record or call mean no limit

-- How far the virtual clock is ahead of the server's.
local function ahead_us(rate_key)
  return math.max(tonumber(redis.call("GET", rate_key) or 0) - us, 0)
end

local function room(rate_key, interval_us, burst)
  return interval_us > 0 and math.floor(burst - ahead_us(rate_key) / interval_us) or wanted
end

local permitted, wait_ms = 0, 0

-- Charge records or calls, and extend the wait until they may be delivered.
local function charge(rate_key, interval_us, burst, count)
  if interval_us > 0 then
    local ahead = ahead_us(rate_key) + count * interval_us
    redis.call("SET", rate_key, string.format("%.0f", us + ahead), "PX", math.ceil(ahead / 1000) + 1000)
    wait_ms = math.max(wait_ms, math.ceil((ahead - burst * interval_us) / 1000))
  end
end

local runner = redis.call("HMGET", runner_key, "token", "permits")
local current, paid = runner[1], tonumber(runner[2])
if current ~= token then
  return { permitted, wait_ms }
end
if paid and at_least > 0 then
  redis.call("HDEL", runner_key, "permits")
  permitted = math.min(paid, wanted)
  return { permitted, wait_ms }
end

local charged = math.max(0, math.min(wanted, room(pipeline_rate_key, pipeline_us, pipeline_burst),
  room(tenant_rate_key, tenant_us, tenant_burst)))
if at_least == 0 then
  permitted, charged = wanted, wanted
elseif charged > 0 and room(pipeline_calls_key, pipeline_call_us, pipeline_call_burst) > 0
  and room(tenant_calls_key, tenant_call_us, tenant_call_burst) > 0 then
  permitted = charged
else
  charged = math.max(charged, math.min(wanted, at_least))
  redis.call("HSET", runner_key, "permits", charged)
end
charge(pipeline_rate_key, pipeline_us, pipeline_burst, charged)
charge(tenant_rate_key, tenant_us, tenant_burst, charged)
charge(pipeline_calls_key, pipeline_call_us, pipeline_call_burst, 1)
charge(tenant_calls_key, tenant_call_us, tenant_call_burst, 1)
return { permitted, wait_ms }
