"""Hostile requests at a receiver of webhooks (`make fuzz`), and webhooks while processes are killed."""
