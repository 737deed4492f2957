"""The way of a call through the gateway: into its function's hall, over a link to a replica, and back.

It refuses to know HTTP, and to start or to end replicas: the controller does.
"""
