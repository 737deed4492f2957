/* A thread that is cancelled ends inside the next call that POSIX lets it end in: open and close are such,
 * and whatever a driver calls. With a mutex or a count of ours in hand it would leave the process's other
 * threads waiting for ever, so meanwhile it is not; it ends at its next such call after. */
#ifndef PGPU_METER_CANCELLATION_H
#define PGPU_METER_CANCELLATION_H

#include <pthread.h>

/* Returns what pgpu_cancellation_restore takes, so that the two nest. */
static inline int pgpu_cancellation_defer(void) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void pgpu_cancellation_restore(int before) {
    pthread_setcancelstate(before, NULL);
}

static inline int pgpu_lock_leaf(pthread_mutex_t *leaf) {
    int before = pgpu_cancellation_defer();
    pthread_mutex_lock(leaf);
    return before;
}

static inline void pgpu_unlock_leaf(pthread_mutex_t *leaf, int before) {
    pthread_mutex_unlock(leaf);
    pgpu_cancellation_restore(before);
}

#endif
