/* A pause between two looks at what another thread holds for a moment. After some looks it sleeps:
 * sched_yield(2) lets no thread of a lower real-time priority run, and the holder may be one. Not a
 * cancellation point. */
#ifndef PGPU_SHIM_BRIEF_WAIT_H
#define PGPU_SHIM_BRIEF_WAIT_H

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PGPU_LOOKS_BEFORE_SLEEP 16u

static inline void pgpu_wait_briefly(unsigned *looks) {
    const struct timespec pause = {.tv_nsec = 20000};
    if (++*looks <= PGPU_LOOKS_BEFORE_SLEEP)
        sched_yield();
    else
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
}

#endif
