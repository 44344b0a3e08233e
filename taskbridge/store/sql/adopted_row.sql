-- A part of a trigger function that is called for each row: that row, as the rows of a statement stand elsewhere.
(SELECT {row}.*)
