-- Part of the scripts that wake an idle tenant: when its last run was.

-- The start of the last run, and until when no run may start after one that took nothing; false for what is unknown.
local function last_run(last_key)
  local last = redis.call("GET", last_key)
  if not last then
    return false, false
  end
  local began, earliest = string.match(last, "^(%d*):?(%d*)$")
  return tonumber(began) or false, tonumber(earliest) or false
end

-- Add what is known about its last run to the fields of a new runner.
local function add_last_run(fields, began, earliest)
  if began then
    fields[#fields + 1], fields[#fields + 2] = "began", began
  end
  if earliest then
    fields[#fields + 1], fields[#fields + 2] = "earliest", earliest
  end
end
