"""Operations of pgpu for one caller, and the messages that carry them between a client and a server."""
