-- May this worker do what one worker at a time does? Until its hold ends it may again, and no other.
-- KEYS: tailing
-- ARGV: worker hold_ms had_until now_ms
-- RETURNS: {wait_ms, anew, ends}: milliseconds until another's hold ends, 0: it may; 1 if another held meanwhile, or the
-- hold of this worker is not as it was last, else 0; and when the hold ends
local tailing_key = KEYS[1]
local worker, hold_ms, had_until, us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), clock_us(ARGV[4])
local now = milliseconds(us)

-- Its end stands in the value: a server whose clock is behind would keep the key for longer. The key lives on, so that who
-- comes late knows that nobody held meanwhile.
local remembered_ms = 60000
local holder, ends = string.match(redis.call("GET", tailing_key) or "", "^(%S+) (%d+)$")
ends = tonumber(ends)
local wait_ms, anew = 0, (holder == worker and ends == had_until) and 0 or 1
if holder and holder ~= worker and ends > now then
  wait_ms, anew = ends - now, 0
else
  ends = now + hold_ms
  redis.call("SET", tailing_key, worker .. " " .. string.format("%.0f", ends), "PX", hold_ms + remembered_ms)
end
return { wait_ms, anew, ends }
