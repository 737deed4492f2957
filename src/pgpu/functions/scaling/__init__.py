"""The scaling policy of functions: how many replicas there are, which ones end, and which version gets the next call.

Pure: the gateway passes a view of the replicas and carries out the steps that it gets back. No clock, randomness or I/O, so
the same view always gives the same steps.
"""
