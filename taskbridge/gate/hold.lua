-- May this worker do what one worker at a time does? Until its hold ends it may again, and no other.
-- KEYS: tailing
-- ARGV: worker hold_ms now_ms
-- RETURNS: {wait_ms, anew}: milliseconds until another's hold ends, 0: it may; and 1 if it did not hold on before, else 0
local tailing_key = KEYS[1]
local worker, hold_ms, us = ARGV[1], tonumber(ARGV[2]), clock_us(ARGV[3])
local now = milliseconds(us)

-- Its end stands in the value: a server whose clock is behind would keep the key for longer.
local holder, ends = string.match(redis.call("GET", tailing_key) or "", "^(%S+) (%d+)$")
local wait_ms, anew = 0, holder == worker and 0 or 1
if holder and holder ~= worker and tonumber(ends) > now then
  wait_ms, anew = ends - now, 0
else
  redis.call("SET", tailing_key, worker .. " " .. string.format("%.0f", now + hold_ms), "PX", hold_ms)
end
return { wait_ms, anew }
