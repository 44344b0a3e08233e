-- From here on the statements of a batch's transaction are ours, and none of the handler's settings may reach them.
RESET ALL
