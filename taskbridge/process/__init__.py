"""What one process needs for its work: connections, heartbeat, event loop, time limits."""
