-- Take the gate for the deployment of this database, or keep it. It belongs to the deployment that began first, as long as a
-- worker of that calls this now and then.
-- KEYS: owner
-- ARGV: database label began_ms now_ms
-- RETURNS: {other, began}: the label of another deployment that has the gate, else "", and since when the owner has it
local owner_key = KEYS[1]
local database, label, began_ms, us = ARGV[1], ARGV[2], tonumber(ARGV[3]), clock_us(ARGV[4])
local now = milliseconds(us)

-- A process that had the gate before takes it back from one that began later, as after Redis lost its data.
local began = began_ms == 0 and now or began_ms
local since, owner, owner_label = string.match(redis.call("GET", owner_key) or "", "^(%d+) (%S+) (.*)$")
since = tonumber(since)
local other = ""
if owner and owner ~= database and since <= began then
  other, began = owner_label, since
else
  if owner == database then
    began = math.min(began, since)
  end
  redis.call("SET", owner_key, string.format("%.0f", began) .. " " .. database .. " " .. label, "PX", OWNER_MS)
end
return { other, began }
