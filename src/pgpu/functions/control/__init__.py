"""Sees to it that there are the replicas that the policy wants: through the desk, never by itself.

It refuses to touch calls: halls do.
"""
