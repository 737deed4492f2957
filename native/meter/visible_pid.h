/* PIDs across namespaces. A slot holds the PID that its process knows itself by; a caller in another PID
 * namespace knows it by another, or not at all, as with NVIDIA's driver.
 *
 * /proc tells: `NSpid:` of a status file lists a process's PIDs from the reader's namespace down to its own.
 * The start time, which no namespace changes, keeps two processes with the same inner PID apart. */
#ifndef PGPU_METER_VISIBLE_PID_H
#define PGPU_METER_VISIBLE_PID_H

#include "reader.h"

/* The PID of a slot's process as the caller sees it; 0: it lives in a namespace that the caller does not see.
 */
unsigned pgpu_visible_pid(const struct pgpu_reader_slot *slot);

#endif
