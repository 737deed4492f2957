"""Deployment of functions: bundles of source, layers of packages, and the jobs that build and serve them.

A bundle is a packed source tree, addressed by its SHA-256. The user's code is never imported here, and a bundle that another
process packed is not trusted.
"""
