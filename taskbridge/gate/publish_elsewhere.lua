-- The broker is another server: the caller publishes right after the script.
local function publish() end
