"""The engine as a long-lived server: HTTP over a Unix socket, and over TCP if an operator enables it.

It authenticates callers and runs the services for them. It keeps no state: an agent supervises the jobs and the ledger is
durable, so a killed server loses nothing.
"""
