"""The verbs of `pgpu`: each reads its options, calls a client, and passes the results to `output`."""
