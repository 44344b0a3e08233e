-- A part of other queries, in place of an adopted table that was dropped.
(SELECT NULL::oid AS tableoid WHERE false)
