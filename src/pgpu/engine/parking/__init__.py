"""Moves suspended jobs between their GPU and the host, where the driver can move whole processes, and waits for it."""
