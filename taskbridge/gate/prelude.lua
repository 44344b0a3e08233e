-- What all scripts share; put before each of them when it is loaded, after the answers' names.

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
