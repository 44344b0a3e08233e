-- Nothing: what stands in the place of a statement where a program is run.
SELECT
