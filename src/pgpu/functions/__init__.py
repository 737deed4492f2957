"""Warm callable objects: what a function is, the process that runs it, and the one that answers for it.

A function is constructed once and called for each request (P5). The HTTP loop and the user's code live in different
processes, so a call that burns the CPU never stops a health check, and a worker that dies is replaced.

Subrooms, lowest first; each imports only those before it (checked by import-linter):

    api         what a function's author says about it; imports nothing
    calls       messages between gateway, front and worker
    handler     loads, constructs and binds the author's callable
    protocols   HTTP bodies to arguments, results to HTTP bodies; pure
    worker      the process that owns CUDA and the handler
    front       the HTTP process of a replica
    dev         one replica in place
    deploy      how a function comes to a server, and its replicas become jobs there
    gateway     where a server's functions are called

and `scaling`, beside `api`, which decides how many replicas there are.

It refuses to choose a GPU or to grant memory: a replica is a job, and its slice comes from the engine.
"""
