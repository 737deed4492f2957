"""Slices for clusters without shared DRA devices: GiB of GPU memory as a countable resource of the node.

A unit is one GiB of one GPU, and its id names the GPU; a container's units make one slice. The scheduler counts one number for
each node and the API has no call that releases units, so requests that span GPUs are refused, and a slice is freed only when the
kubelet has certainly given up its units.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1; docs/decisions/0047.
"""
