-- A part of a trigger function that is called for each row: one row without columns, in whose place NEW or OLD is named. Their
-- columns are not listed (`NEW.*`): a session keeps the list that it has planned with, and would miss a column that comes later.
(SELECT)
