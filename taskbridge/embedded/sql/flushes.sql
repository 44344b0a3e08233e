-- Whether the cluster waits until the disk has what it writes.
SELECT current_setting('fsync')::boolean
