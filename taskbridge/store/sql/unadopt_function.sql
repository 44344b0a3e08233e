-- A table is given up: the function that its triggers called goes.
DROP FUNCTION IF EXISTS {function}()
