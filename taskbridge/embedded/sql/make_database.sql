-- A database, as a copy of another one. {strategy} is empty, or a clause: how it is copied.
CREATE DATABASE {name} TEMPLATE {template} {strategy}
