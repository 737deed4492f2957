"""Asynchronous calls: stored with their answers, so that they survive the gateway; also events, which are delivered repeatedly.

A call whose caller waits for it is never stored.
"""
