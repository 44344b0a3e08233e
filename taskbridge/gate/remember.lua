-- Postgres knows when a tenant's last run began: keep that for as long as it can delay the next, unless a later start is known.
-- USES: expiry
-- KEYS: last
-- ARGV: last_ms:number last_ttl_ms:number now_ms
-- RETURNS: {left_ms}: for how much longer it matters; 0 or less, and nothing is kept

-- As `settle` writes it.
local known, earliest = string.match(redis.call("GET", last_key) or "", "^(%d*)(:?%d*)$")
known = tonumber(known)
-- A clock of Postgres that is ahead says nothing.
if last_ms > now then
  last_ms = known or now
end
last_ms = math.max(last_ms, known or 0)
local left_ms = last_ms + last_ttl_ms - now
if left_ms > 0 then
  redis.call("SET", last_key, string.format("%.0f", last_ms) .. earliest, lifetime(left_ms, now))
end
return { left_ms }
