#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char FIRST_LINE[] = "pgpu-record 1 -\n"; /* the dash is the mark */

static bool add(struct record *record, const char *text, int length) {
    if (length < 0 || record->length + length > RECORD_SIZE) {
        errno = ENOSPC;
        return false;
    }
    for (int done = 0; done < length;) {
        const ssize_t put = pwrite(record->fd, text + done, (size_t)(length - done), record->length + done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += (int)put;
    }
    record->length += length;
    return true;
}

bool record_create(struct record *record, int spool, const char *job, const char *try) {
    char first[100];
    snprintf(first, sizeof first, ".%s.%s", job, try);
    snprintf(record->started, sizeof record->started, "started-%s.%s", job, try);
    snprintf(record->ended, sizeof record->ended, "ended-%s.%s", job, try);
    record->spool = spool;
    record->length = 0;
    if (unlinkat(spool, first, 0) != 0 && errno != ENOENT)
        return false; /* of a monitor that was killed here */
    record->fd = openat(spool, first, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (record->fd < 0) return false;
    const int error = posix_fallocate(record->fd, 0, RECORD_SIZE);
    if (error == 0 && add(record, FIRST_LINE, sizeof FIRST_LINE - 1)) return true;
    if (error != 0) errno = error;
    const int kept = errno;
    unlinkat(spool, first, 0);
    close(record->fd);
    errno = kept;
    return false;
}

/* Field 22 of /proc/PID/stat, behind the name, which may hold anything. */
static unsigned long long start_ticks(pid_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = '\0';
    const char *behind = strrchr(text, ')');
    unsigned long long ticks = 0;
    if (behind == NULL ||
        sscanf(behind + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &ticks) != 1)
        return 0;
    return ticks;
}

bool record_start(struct record *record, pid_t main) {
    char text[256], boot[64] = "", first[100];
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        const ssize_t got = read(fd, boot, sizeof boot - 1);
        close(fd);
        if (got > 0) boot[strcspn(boot, "\n")] = '\0';
    }
    const int length = snprintf(text, sizeof text, "pid=%d\nstart=%llu\nboot=%s\nmonitor=%d\n", (int)main,
                                start_ticks(main), boot, (int)getpid());
    snprintf(first, sizeof first, ".%s", record->started + sizeof "started-" - 1);
    if (!add(record, text, length)) return false;
    /* One of two monitors of the same try gets the name. The page cache is durable enough within one boot. */
    if (linkat(record->spool, first, record->spool, record->started, 0) != 0) return false;
    unlinkat(record->spool, first, 0);
    return true;
}

static unsigned long long microseconds(struct timeval time) {
    return (unsigned long long)time.tv_sec * 1000000u + (unsigned long long)time.tv_usec;
}

bool record_end(struct record *record, int wait_status, const struct rusage *usage, uint64_t dropped) {
    char text[256];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const bool is_signal = WIFSIGNALED(wait_status);
    const int length =
        snprintf(text, sizeof text,
                 "%s=%d\nended_ns=%lld%09ld\nuser_us=%llu\nsystem_us=%llu\npeak_kib=%ld\ndropped=%llu\n",
                 is_signal ? "signal" : "code", is_signal ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status),
                 (long long)now.tv_sec, now.tv_nsec, microseconds(usage->ru_utime),
                 microseconds(usage->ru_stime), usage->ru_maxrss, (unsigned long long)dropped);
    const bool is_whole = add(record, text, length);
    /* In this order: a name of an end never stands beside a record without one. */
    if (fdatasync(record->fd) != 0) return false;
    return renameat(record->spool, record->started, record->spool, record->ended) == 0 && is_whole;
}

void record_forget(const struct record *record) {
    char first[100];
    snprintf(first, sizeof first, ".%s", record->started + sizeof "started-" - 1);
    unlinkat(record->spool, first, 0);
}
