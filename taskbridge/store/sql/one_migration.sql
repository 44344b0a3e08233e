-- One migration at a time: a second one waits until the first has committed. The number is "taskbrid" in ASCII.
SELECT pg_advisory_xact_lock(8386110886190934372)
