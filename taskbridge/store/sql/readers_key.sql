-- A part of other queries: what is locked of a source while its readers are counted, or become more.
hashtextextended('taskbridge readers {schema}:' || %(source)s, 0)
