"""HTTP of replicas and gateways: connections become pending requests, replies become bytes. Bodies are never decoded here.

A usual call goes the direct way: the connection passes it to the `RequestHandler` and writes the answer in one piece. All
other requests go through an ASGI application, one task each.
"""
