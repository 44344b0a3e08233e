-- Take the gate for the deployment of this database, or keep it. An owner is remembered for a day, and can be replaced once none
-- of its workers has called this for OWNER_MS and it left no work.
-- KEYS: owner
-- ARGV: database label began_ms:number is_idle:flag now_ms
-- RETURNS: {other, began, is_away}: the label of another deployment that owns the gate, else ""; since when the gate has had
-- owners; and whether the other one is away

local since, ends, owner, owner_label = string.match(redis.call("GET", owner_key) or "", "^(%d+) (%d+) (%S+) (.*)$")
local began, is_away = tonumber(since), now >= (tonumber(ends) or 0) and 1 or 0
local other = ""
-- The calling process owned the gate before this owner did: Redis lost its data, and another deployment was quicker.
local had_it_first = owner and began_ms > 0 and began_ms < began
if owner and owner ~= database and not had_it_first and not (is_idle and is_away == 1) then
  other = owner_label
else
  -- An owner that takes over keeps the start time of the previous one, so that the previous one cannot have had it first.
  if not owner or had_it_first then
    began = began_ms > 0 and began_ms or now
  end
  redis.call("SET", owner_key, string.format("%.0f %.0f %s %s", began, now + OWNER_MS, database, label), "PX", DAY_MS)
end
return { other, began, is_away }
