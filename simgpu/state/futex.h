/* Sleeping until a word changes, which may lie in memory that processes share. */
#ifndef SIM_FUTEX_H
#define SIM_FUTEX_H

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SIM_WAIT_FOREVER 0u

/* Return once the word is not `value` any more, at the latest after so many milliseconds, or for no reason.
 */
static inline void sim_wait_while(uint32_t *word, uint32_t value, unsigned most_ms) {
    struct timespec most = {.tv_sec = most_ms / 1000, .tv_nsec = (long)(most_ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, most_ms == SIM_WAIT_FOREVER ? NULL : &most, NULL, 0);
}

static inline void sim_wait_end(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

#endif
