-- Deferred constraints and triggers belong to what the handler wrote, so they run under its settings: its role, its search_path,
-- its limits. What follows is ours.
SET CONSTRAINTS ALL IMMEDIATE
