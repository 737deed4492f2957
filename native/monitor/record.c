#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "digits.h"

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
    char *first = record->first;
    snprintf(first, sizeof record->first, ".%s.%s", job, try);
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

bool parse_process(const char *text, pid_t pid, struct process *process) {
    enum { FIRST_FIELD = 2 /* behind the name */, START_FIELD = 22 };
    const char *name = strchr(text, '('), *behind = strrchr(text, ')');
    if (name == NULL || behind == NULL || behind < name) return false;
    *process = (struct process){.pid = pid};
    const size_t length = (size_t)(behind - name - 1);
    if (length >= sizeof process->name) return false;
    memcpy(process->name, name + 1, length);
    for (int field = FIRST_FIELD; field < START_FIELD; field++) {
        behind = strchr(behind + 1, ' ');
        if (behind == NULL) return false;
    }
    return read_digits(behind + 1, 10, &process->start_ticks) != NULL;
}

bool read_text(const char *path, char *text, size_t size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, size - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = '\0';
    return true;
}

bool identify(pid_t pid, struct process *process) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return read_text(path, text, sizeof text) && parse_process(text, pid, process);
}

static bool add_identity(struct record *record, const struct process *process) {
    char text[192], boot[64] = "";
    if (read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) boot[strcspn(boot, "\n")] = '\0';
    const int length = snprintf(text, sizeof text, "pid=%d\nstart=%lu\nboot=%s\n", (int)process->pid,
                                process->start_ticks, boot);
    return add(record, text, length);
}

bool record_start(struct record *record, pid_t main) {
    char text[32];
    struct process process = {.pid = main};
    identify(main, &process);
    const int length = snprintf(text, sizeof text, "monitor=%d\n", (int)getpid());
    if (!add_identity(record, &process) || !add(record, text, length)) return false;
    /* One of two monitors of the same try gets the name. The page cache is durable enough within one boot. */
    record->has_started = linkat(record->spool, record->first, record->spool, record->started, 0) == 0;
    if (record->has_started) unlinkat(record->spool, record->first, 0);
    return record->has_started;
}

static bool add_end(struct record *record, const siginfo_t *end) {
    char text[64];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int length =
        snprintf(text, sizeof text, "%s=%d\nended_ns=%ld\n", end->si_code == CLD_EXITED ? "code" : "signal",
                 end->si_status, (long)now.tv_sec * 1000000000 + now.tv_nsec);
    return add(record, text, length);
}

static long microseconds(struct timeval time) {
    return (long)time.tv_sec * 1000000 + (long)time.tv_usec;
}

bool record_end(struct record *record, const siginfo_t *end, const struct rusage *usage, uint64_t dropped) {
    char text[160];
    const int length = snprintf(text, sizeof text, "user_us=%ld\nsystem_us=%ld\npeak_kib=%ld\ndropped=%lu\n",
                                microseconds(usage->ru_utime), microseconds(usage->ru_stime),
                                usage->ru_maxrss, (unsigned long)dropped);
    /* In this order: a name of an end never stands beside a record without one. */
    return add_end(record, end) && add(record, text, length) && fdatasync(record->fd) == 0 &&
           renameat(record->spool, record->started, record->spool, record->ended) == 0;
}

void record_remove(const struct record *record) {
    unlinkat(record->spool, record->has_started ? record->started : record->first, 0);
}

bool record_reaped(const char *directory, const struct process *process, const siginfo_t *end) {
    static const char HAS_RUN[] = "pgpu-record 1 R\n";
    char first[4096], name[4096];
    if (snprintf(first, sizeof first, "%s/.reaped-%d", directory, (int)process->pid) >= (int)sizeof first) {
        errno = ENAMETOOLONG;
        return false;
    }
    snprintf(name, sizeof name, "%s/reaped-%d", directory, (int)process->pid);
    struct record record = {.fd = open(first, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (record.fd < 0) return false;
    const bool is_whole = add(&record, HAS_RUN, sizeof HAS_RUN - 1) && add_identity(&record, process) &&
                          add_end(&record, end) && fdatasync(record.fd) == 0 && rename(first, name) == 0;
    const int error = errno;
    close(record.fd);
    if (!is_whole) unlink(first);
    errno = error;
    return is_whole;
}
