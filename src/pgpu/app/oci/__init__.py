"""`docker run --runtime=pgpu`: what happens between a container engine and runc.

`create` runs before every such container and has milliseconds. It and what it imports (`runc_call`, `gpu_request`,
`container_slice`, `agent_call`) use only a few modules of the standard library and no other room of pgpu; a test checks that.
It hands the container to the agent of the queue, where a thread runs `attendant`. `installation` is another process.
"""
