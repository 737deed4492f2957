"""A scheduler extender that scores nodes for a pod, so that few GPUs are left with parts that no pod can use.

The stock scheduler calls it to prioritize nodes, and nothing else, and decides by itself: without the extender, or with wrong scores, pods
lie less densely and everything else works. It never filters, binds or writes to the cluster.
"""
