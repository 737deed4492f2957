"""The gateway process: one HTTP entrance to all functions of a server.

It counts pending requests, has replicas started as jobs of their functions' owners, holds requests while there is none, and
finds running replicas again after a restart. It runs no user code, reads no body and does not open the ledger: it is a client
of the server's API.
"""
