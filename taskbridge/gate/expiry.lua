-- Part of the scripts that set keys with a lifetime.

-- Arguments of SET for a key that expires `ms` after `now`. In production the server's own clock counts, which may differ from
-- the gate's. In a test that moves the time, the test's clock counts.
local function lifetime(ms, now)
  if is_injected then
    return "PXAT", now + ms
  end
  return "PX", ms
end
