"""Slices on clusters that are too old for shared devices of DRA: GiB of GPU memory as a countable resource of the node.

A unit is one GiB of one GPU, and its id says which GPU. What a container gets is one slice, through the same seam to the engine
as a ResourceClaim's. The scheduler sees one number for each node and the API has no call for a release, so this room refuses
what spans GPUs, and frees only what the kubelet surely gave up.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1; docs/decisions/0047.
"""
