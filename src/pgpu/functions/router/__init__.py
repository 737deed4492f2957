"""The way of a call through the gateway: to its function's router, over a connection to a replica, and back.

Independent of HTTP. The router does not start or end replicas: it shows what it needs, and the controller acts.
"""
