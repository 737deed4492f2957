/* How the launcher reports a failure to the runtime: one line "ERRNO<tab>STAGE<tab>DETAIL" on REPORT_FD. */
#ifndef PGPU_LAUNCHER_REPORT_H
#define PGPU_LAUNCHER_REPORT_H

#define CONTROL_FD 3 /* read: the job's environment, then one byte that lets it go */
#define MARK_FD    5 /* with --mark: the monitor's record, which is marked directly before the command runs */
#define REPORT_FD  4 /* write: "ready", then nothing (the command runs) or one line of failure */

/* Report errno, on stderr where REPORT_FD is closed, and end with pgpu's own exit code, 125; the command was
 * not started. */
_Noreturn void give_up(const char *stage, const char *detail);

#endif
