/* PIDs across namespaces. A slot has its process's PID in the process's own namespace; in a caller's PID
 * namespace it has another one or none, as with NVIDIA's driver.
 *
 * `NSpid:` in a /proc status file lists a process's PIDs from the reader's namespace down to its own. The
 * start time, which is the same in all namespaces, distinguishes two processes with the same inner PID. */
#ifndef PGPU_METER_VISIBLE_PID_H
#define PGPU_METER_VISIBLE_PID_H

#include "reader.h"

/* The PID of a slot's process as the caller sees it; 0: it lives in a namespace that the caller does not see.
 */
unsigned pgpu_visible_pid(const struct pgpu_reader_slot *slot);

#endif
