"""Composition: reads settings, picks real or simulated parts, and joins them to engines, clients and servers."""
