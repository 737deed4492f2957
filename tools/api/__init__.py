"""Facts about NVIDIA's driver interfaces, read from their headers at development time.

The headers' text is NVIDIA's and never committed; names, versions, numbers and types of functions are facts, and those
are committed in `native/api/`. `tools/generate_api.py` is the command.
"""
