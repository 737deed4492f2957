/* The command itself: its environment, its terminal, and execve. */
#ifndef PGPU_LAUNCHER_COMMAND_H
#define PGPU_LAUNCHER_COMMAND_H

/* Read the job's environment from CONTROL_FD into `environ`: its length as 8 bytes, then `KEY=VALUE` strings,
 * each ended by a zero byte. It travels here because the launcher must not run under the job's own LD_*
 * words. */
void read_environment(void);

/* Put our libraries before what LD_PRELOAD holds. */
void preload(const char *libraries);

/* Make stdin, a terminal, the controlling one of this new session. */
void take_terminal(void);

/* Report that everything is in place and wait for permission to run; end quietly if the runtime ends instead.
 */
void wait_until_let_go(void);

/* Replace this process by the command, searched on the job's PATH. Unlike execvp, a file that is no program
 * is refused and not handed to a shell, as container runtimes do. */
_Noreturn void run_command(char **command);

/* Write the mark of a command that ran into the monitor's record: a start without it is safe to repeat. */
void mark_run(void);

#endif
