"""Calls that are kept: asynchronous ones with their answers, and events that are delivered more than once.

It refuses to be a queue for everything: a call that somebody waits for is never written down.
"""
