-- A page of a round: all of it reads one snapshot, and it writes nothing, because an id of its own would count as visible.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY
