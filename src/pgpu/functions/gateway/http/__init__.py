"""HTTP at the gateway: which function a path means, whether its caller may, and what every page says.

It refuses to read a body: bytes go to a replica and come back.
"""
