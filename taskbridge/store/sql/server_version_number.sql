-- The server's version as a number: ten thousand times the major version, and the minor one.
SHOW server_version_num
