-- What the scripts share; put before each of them when it is loaded, after the answers' names.

-- Microseconds of the server. A test may pass milliseconds in; production passes an empty string.
local function clock_us(given_ms)
  if given_ms ~= "" then
    return tonumber(given_ms) * 1000
  end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function milliseconds(us)
  return math.floor(us / 1000)
end

-- The token of a new run, above `floor`: another token, or false. 16 digits of microseconds order tokens as text until the year 2286.
local function new_token(us, floor, nonce)
  if floor then
    us = math.max(us, tonumber(string.sub(floor, 1, 16)) + 1)
  end
  return string.format("%016.0f-%s", us, nonce)
end

-- Queue a run. The deadline comes back after `republish_ms` and then takes twice as long each time.
local function queue_run(due_key, runner_key, tenant, token, republish_ms, us)
  redis.call("HSET", runner_key, "state", "queued", "token", token, "patience", republish_ms)
  redis.call("HDEL", runner_key, "held")
  redis.call("ZADD", due_key, milliseconds(us) + republish_ms, tenant)
end
