"""P5 again: a detector whose weights are loaded by each request, or once.

It refuses to serve anything itself: the functions are served by pgpu's own front and worker.
"""
