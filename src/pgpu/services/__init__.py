"""Operations of pgpu for one caller, and the messages and routes that carry them between a client and a server.

`JobService`, `FunctionService` and `AdministrationService` act on the engine of this process. The local client calls them
directly, a server for each authenticated request; `route_table` is the same interface over HTTP.
"""
