/* The parent of one queue's agent, which is a Python process and may be killed at any time.
 *
 * The guard restarts an agent that failed, and keeps the queue's lock open meanwhile, so that no other agent
 * gets it. It is a subreaper: monitors of a killed agent and jobs of a killed monitor become its children.
 * Since only a parent gets an exit status, it writes one file `reaped-PID` for each of them but the monitors,
 * in the format of record.h. An agent that exits with 0 had no work left: its lock is closed, and the guard
 * exits once it has no other children. SIGTERM is passed to the agent, and the guard exits with it.
 *
 * An agent that shows no life for 10 s is killed, and so restarted: heartbeat.h.
 *
 * It also keeps descriptors of the agent's jobs (kept.h), so that neither their terminals nor what is in
 * their pipes is lost if the agent and a monitor are killed together. */
#pragma once

/* `command` is the agent's argv: an absolute path first, the number of `lock` before the last word, whose
 * place is `last_word`. */
_Noreturn void guard(int lock, const char *spool, char **command, char **last_word);
