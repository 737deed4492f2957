"""The messages that pass between the kubelet and its plugins, and the code that `make proto` generates from them.

The .proto files are ours, written from the facts of the wire: names, numbers and types are what a kubelet sends. They hold
nothing else: no behaviour, no default, no check.
"""
