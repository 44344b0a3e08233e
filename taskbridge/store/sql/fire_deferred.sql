-- Deferred constraints and triggers belong to what the handler wrote, so they run under its role, search_path and settings. What
-- follows is ours.
SET CONSTRAINTS ALL IMMEDIATE
