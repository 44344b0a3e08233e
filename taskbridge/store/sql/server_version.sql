-- The server's version for people, such as "17.6".
SHOW server_version
