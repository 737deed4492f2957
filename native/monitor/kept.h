/* Descriptors that a guard keeps for jobs of its agent: read ends of pipes, master sides of terminals. */
#pragma once

enum { KEPT_MESSAGE = 64 }; /* most bytes of a request */

/* Raises this process's limit of descriptors as far as it may, and plans how many of them may be kept. */
void kept_init(void);

/* Reads one request of the agent and carries it out: the protocol is in guard.c. Never blocks.
 *
 * Returns 1 if there was one, whatever it held, 0 if none waits, and -1 once the agent has closed its end. */
int kept_serve(int socket);
