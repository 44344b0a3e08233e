-- May this worker poll the changes of a pipeline? Until its hold ends, it may renew the hold and no other worker can take it.
-- KEYS: tailing
-- ARGV: worker hold_ms:number had_until:number now_ms
-- RETURNS: {wait_ms, lost, ends}: milliseconds until another's hold ends (0: this worker has it); 1 if no hold is known, or only
-- one that ended before `had_until` (the end of the last hold that this worker knew of), else 0; and when the hold ends

-- The end is stored in the value: a server whose clock is behind would keep the key for longer. Each hold ends later than the
-- previous one, whoever has it; so an earlier end means that Redis came back with older data. The key outlives the hold, so that
-- a late worker can tell that this did not happen.
local holder, ends = string.match(redis.call("GET", tailing_key) or "", "^(%S+) (%d+)$")
ends = tonumber(ends)
local wait_ms, lost = 0, (not holder or ends < had_until) and 1 or 0
if holder and holder ~= worker and ends > now then
  wait_ms = ends - now
else
  ends = math.max(now + hold_ms, lost == 0 and ends + 1 or 0)
  redis.call("SET", tailing_key, worker .. " " .. string.format("%.0f", ends), "PX", hold_ms + POLLER_MEMORY_MS)
end
return { wait_ms, lost, ends }
