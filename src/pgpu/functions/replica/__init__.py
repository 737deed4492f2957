"""The HTTP process of a replica: queue, deadlines, health, metrics, and the care for its worker.

No line of the user's runs here, nor anything that decodes a body, so health and refusals are answered at once whatever the
handler does. It refuses to touch CUDA, to choose between replicas and to know users: the gateway does.
"""
