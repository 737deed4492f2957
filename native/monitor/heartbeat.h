/* The heartbeat of an agent, as its guard sees it.
 *
 * The agent's main loop sets the modification time of the lock's file to PERIOD * 1000000 + COUNT seconds
 * since the epoch, where COUNT is another number at each beat and PERIOD is the longest time in seconds until
 * the next one: 1 while jobs wait or run, longer for an idle agent. A file's time needs no memory or
 * descriptor between the two, and the guard of another release ignores it; a time outside of this range,
 * which any write to the file sets, is no beat, so an agent of another release is never killed.
 * pgpu.engine.agent.heartbeat writes it.
 *
 * The guard compares the file's time once a PERIOD. An agent is silent in a period without a beat in which
 * its main thread also ran for less than a fiftieth: a round that takes long on a loaded machine is no
 * silence. Only periods that the guard itself lived through count, one for each of its wake-ups: after a
 * suspend of the machine, or of agent and guard together, the agent has 10 s again. An agent that a debugger
 * has stopped, or that waits uninterruptibly in the kernel, is not silent. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct heartbeat {
    uint64_t looks_at_ms, pause_ms, silent_ms;
    uint64_t period_ms; /* 0 before the first beat: the agent is not watched yet */
    uint64_t run_ticks; /* of the main thread */
    int64_t beat;
};

/* Begins with an agent that has not beaten yet; what the last one left is no beat. */
void heartbeat_begin(struct heartbeat *heartbeat, int lock);

/* Looks if it is time to; true if the agent has been silent for too long. */
bool heartbeat_is_lost(struct heartbeat *heartbeat, int lock, pid_t agent, uint64_t now);
