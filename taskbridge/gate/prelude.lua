-- What the scripts share; put before each of them when it is loaded, after the answers' names.

local DAY_MS = 86400000
-- Probes of an open circuit try the first record of a tenant, then the second, up to this many, then the first again.
local WALK = 16
-- Continuations stand in line behind all first events: this is added to the millisecond at which they joined.
local BEHIND = 100000000000000

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

-- Hold a run until there is room for it; the caller sets its deadline.
local function stand_in_line(runner_key, line_key, tenant, joined, runs)
  redis.call("HSET", runner_key, "state", "waiting", "held", 1, "joined", joined)
  redis.call("ZADD", line_key, tonumber(runs) == 0 and joined or joined + BEHIND, tenant)
  redis.call("PEXPIRE", line_key, DAY_MS)
end
