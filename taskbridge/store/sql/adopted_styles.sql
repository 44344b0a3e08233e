-- A part of the head of a trigger function: times are written so that they can be read again.
SET datestyle = 'ISO, YMD'
