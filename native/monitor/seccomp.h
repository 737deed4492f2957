/* The system calls that a monitor needs once its job was started, as a seccomp filter (x86-64 and aarch64).
 *
 * The monitor reads frames, words and output that others wrote, with root's uid on root's server. A call that
 * is not listed, of another machine's table, or with an argument that is not, ends the process: the list is
 * complete, because the program is linked with no C library that could choose other calls, so such a call is
 * an attack or a bug. The job goes on then; its agent starts another monitor for the streams, and the guard
 * gets the exit code. With an error in place of the end, an attacker could try call after call.
 *
 * Builds with sanitizers have no filter: their run-time libraries need other calls. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

/* Applies the filter to this process for good; signals reach `main` (0: there is none) and this process only.
 * True too if this kernel has no seccomp; false with errno if it has, and refuses. */
bool restrict_calls(pid_t main);
