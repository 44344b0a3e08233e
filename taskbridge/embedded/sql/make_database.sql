-- A database, as a copy of another one.
CREATE DATABASE {name} TEMPLATE {template}
