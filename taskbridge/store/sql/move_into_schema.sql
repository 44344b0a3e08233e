-- Something that an earlier version made among the application's own tables.
ALTER {kind} {former}.{name} SET SCHEMA {schema}
