"""What one process needs: connections, heartbeat, event loop, time limits, the pace of handlers, shutdown."""
