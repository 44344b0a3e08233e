-- A part of the trigger function of an adopted table: a column of it has the name and the type that it was adopted with. After a
-- restore of a dump its number is another one.
JOIN pg_attribute t{place}
    ON t{place}.attrelid = a.relation AND t{place}.attname = {name} AND NOT t{place}.attisdropped
    AND t{place}.atttypid = a.column_types[{place}] AND (a.numbered <> a.relation OR t{place}.attnum = a.column_numbers[{place}])
