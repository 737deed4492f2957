"""The engine as a long-lived server: HTTP over a Unix socket, and over TCP where an operator asks for it.

It adds callers and what they may to the words of the `Client` protocol. It refuses to decide on GPUs, to run jobs and to
keep state: each job has its supervisor, and the ledger holds the truth, so a server that is killed loses nothing.
"""
