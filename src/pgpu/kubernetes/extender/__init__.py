"""Which node a pod should rather get: a scheduler extender, so that few GPUs are left with parts that nobody can use.

The stock scheduler asks it to score the nodes that could host a pod (prioritize, and nothing else), and decides. With it
off, or wrong, everything works: pods lie less densely. It refuses to filter, to bind and to write anything to the cluster.
"""
