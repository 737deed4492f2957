"""Slices on Kubernetes: what stands between a node's kubelet, the API server and the engine.

The stock scheduler decides which pod gets which GPU; this room tells it what there is, and makes what it decided hold.
It alone imports gRPC and talks to an API server. It refuses to schedule, and to hand out a slice that does not bind.
"""
