-- What all scripts share; put before each of them when it is loaded, after the names of answers and constants.

-- The last key of every script is what the gate knows of time; only `tick` writes it. Its fields, in microseconds:
--   mark    the latest time that a ticker saw
--   offset  what is added to the server's clock, since a server whose clock was behind the mark took over
local clock_key = KEYS[#KEYS]
-- Whether a test passed the time in.
local is_injected = false
-- How far the server's clock is behind the mark; `clock_us` sets it.
local behind_us = 0

-- The gate's time in microseconds: that of the server, which never goes back. A test may pass the server's time in, in
-- milliseconds; production passes an empty string.
local function clock_us(given_ms)
  local us
  if given_ms ~= "" then
    is_injected = true
    us = math.floor(given_ms * 1000 + 0.5)
  else
    local time = redis.call("TIME")
    us = time[1] * 1000000 + time[2]
  end
  local clock = redis.call("HMGET", clock_key, "offset", "mark")
  us = us + (clock[1] or 0)
  behind_us = math.max(0, (clock[2] or 0) - us)
  return us + behind_us
end

local function milliseconds(us)
  return math.floor(us / 1000)
end
