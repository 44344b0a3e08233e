-- Part of the scripts that set keys which go by themselves.

-- Arguments of SET for a key that lives `ms` from `now` on. In production that is counted by the server's own clock, which
-- may be another than the gate's. Where a test moves the time, keys live by the test's.
local function lifetime(ms, now)
  if is_injected then
    return "PXAT", now + ms
  end
  return "PX", ms
end
