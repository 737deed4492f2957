"""HTTP on a replica's sockets: requests become tickets, answers become bytes.

It refuses to decode a body or to know the handler: bytes go to the worker and come back.
"""
