"""The SQLite database of jobs and leases: the one truth that survives a crash.

One writer transaction for each decision. It refuses to hold policy: it stores and finds.
"""
