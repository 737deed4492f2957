"""The messages that pass between the kubelet and its plugins, and the code that `tools/generate_wire.py` makes of them.

The .proto files are ours, written from the facts of the wire: names, numbers and types are what a kubelet sends. They hold
nothing else: no behaviour, no default, no check.
"""
