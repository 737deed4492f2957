"""Sees to it that there is a worker: zygote, births, deaths, restarts.

It refuses to touch requests beyond telling the desk whether there is a worker.
"""
