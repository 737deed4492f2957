"""Where a server's functions are called: one HTTP door before all replicas.

It counts what waits and runs, has replicas started as jobs of the function's owner, holds requests while there is none, and
finds living replicas again after its own end. It refuses to run a line of the user's code, to read a body and to touch the
ledger: it asks the server as everybody does.
"""
