"""The HTTP routes, one module for each group: each reads a request, asks the desk, and answers.

They refuse to decide: what a caller may is `access`', what happens is the desk's.
"""
