/* Open-file-description locks on one byte, tried once and never waited for. */
#ifndef PGPU_METER_LOCK_H
#define PGPU_METER_LOCK_H

#include <fcntl.h>
#include <stdbool.h>

/* Old C libraries have the kernel's calls without their names. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static inline struct flock pgpu_lock_at(long long byte, short type) {
    struct flock lock = {.l_type = type, .l_whence = 0, .l_start = byte, .l_len = 1};
    return lock;
}

static inline bool pgpu_try_lock(int fd, long long byte) {
    struct flock lock = pgpu_lock_at(byte, F_WRLCK);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static inline void pgpu_unlock(int fd, long long byte) {
    struct flock lock = pgpu_lock_at(byte, F_UNLCK);
    fcntl(fd, F_OFD_SETLK, &lock);
}

/* Whether another description holds it; an error counts as held, so that nothing is taken back by mistake. */
static inline bool pgpu_is_locked(int fd, long long byte) {
    struct flock lock = pgpu_lock_at(byte, F_WRLCK);
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

#endif
