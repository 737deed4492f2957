"""Slices on Kubernetes: drivers between a node's kubelet, the API server and the engine, and tools for the cluster.

The stock scheduler decides which pod gets which GPU. pgpu publishes the node's GPUs (`resource_slices`), prepares what was allocated (`dra`, or
`device_plugin` on older clusters), scores nodes (`extender`), deploys functions (`deploy`) and checks clusters (`doctor`). Only this package
imports gRPC and connects to an API server (`api`).
"""
