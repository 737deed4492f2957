"""Wiring: the one room that picks real or simulated parts, from settings, and joins them.

It refuses to print, to know exit codes, and to choose a simulated GPU that nobody asked for.
"""
