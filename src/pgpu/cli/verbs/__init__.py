"""What each verb of `pgpu` does, one module for each group of them, and what only they need.

It refuses to lay out results: it asks a client and hands what it hears to `output`.
"""
