-- A part of the head of a trigger function: dates and times are written in one way, and can be read again.
SET datestyle = 'ISO, YMD' SET timezone = 'UTC'
