"""Messages between the kubelet and its plugins: .proto files written for pgpu, and the code that tools/generate_wire.py makes of them.

The .proto files hold facts of the wire alone: names, numbers and types as a kubelet sends them. `dra_v1.proto` serves v1beta1 as well.
"""
