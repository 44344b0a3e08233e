"""No settings: a worker of a benchmark has the defaults of its app, whatever lies in the current directory."""
