"""Files, sockets and processes of the engine: where they lie and how they are reached."""
