-- Shared by all scripts: inserted before each of them when it is loaded, after the names of answers and constants.

-- The last key of every script is the gate's clock; only `tick` writes it. Its fields, in microseconds:
--   mark    the latest time that a ticker saw
--   offset  added to the server's clock, after a server took over whose clock was behind the mark
local clock_key = KEYS[#KEYS]
-- Whether a test passed the time.
local is_injected = false
-- How far the server's clock is behind the mark; `clock_us` sets it.
local behind_us = 0

-- The gate's time in microseconds: the server's time, except that it never goes back. A test can pass the server's time in
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
