-- Store when a tenant's last run began according to Postgres, as long as it can delay the next, unless a later start is known.
-- USES: expiry
-- KEYS: last
-- ARGV: last_ms:number last_ttl_ms:number now_ms
-- RETURNS: {left_ms}: for how much longer it matters; if 0 or less, nothing is stored

-- The format is that of `settle`.
local known, earliest = string.match(redis.call("GET", last_key) or "", "^(%d*)(:?%d*)$")
known = tonumber(known)
-- The clock of Postgres may be ahead; such a time is ignored.
if last_ms > now then
  last_ms = known or now
end
last_ms = math.max(last_ms, known or 0)
local left_ms = last_ms + last_ttl_ms - now
if left_ms > 0 then
  redis.call("SET", last_key, string.format("%.0f", last_ms) .. earliest, lifetime(left_ms, now))
end
return { left_ms }
