#include "storm_check.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void wait_a_moment(void) {
    struct timespec moment = {.tv_nsec = 200000};
    nanosleep(&moment, NULL);
}

bool storm_reap_in_child(const char *usage_path) {
    pid_t pid = fork();
    if (pid == 0) _exit(storm_reap(usage_path) ? 0 : 1);
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A worker that killed itself is waited for here, so that its locks are gone before we count. */
static void wait_for_rest(struct storm_worker *worker) {
    while (worker->pid != 0 && !worker->is_paused) {
        if (waitpid(worker->pid, NULL, WNOHANG) == worker->pid) worker->pid = 0;
        wait_a_moment();
    }
}

struct range {
    int64_t least, most;
};

/* A dead worker with a surviving child counts for what it had, with or without the operation it died in. */
static struct range range_of(const struct storm_worker *worker, unsigned gpu) {
    struct range range = {0, 0};
    int64_t held = worker->expected_bytes[gpu], with_last = held + worker->in_flight_bytes[gpu];
    if (worker->pid != 0) return (struct range){held, held};
    if (worker->child_pid != 0)
        range = (struct range){held < with_last ? held : with_last, held < with_last ? with_last : held};
    if (worker->child_pid == STORM_FORKING) range.least = 0;
    return range;
}

static bool compare(const char *usage_path, unsigned workers, const char *when) {
    if (!storm_reap_in_child(usage_path)) {
        fprintf(stderr, "%s: the reaper found no slot\n", when);
        return false;
    }
    for (unsigned gpu = 0; gpu < STORM_GPUS; gpu++) {
        int64_t least = 0, most = 0, counted = storm_book->checked_bytes[gpu];
        for (unsigned at = 0; at < workers; at++) {
            least += range_of(&storm_book->worker[at], gpu).least;
            most += range_of(&storm_book->worker[at], gpu).most;
        }
        if (counted >= least && counted <= most) continue;
        fprintf(stderr, "%s: GPU %u counts %lld, the living hold %lld to %lld\n", when, gpu,
                (long long)counted, (long long)least, (long long)most);
        return false;
    }
    return true;
}

static bool is_worker(pid_t pid, unsigned workers) {
    for (unsigned at = 0; at < workers; at++)
        if (storm_book->worker[at].pid == pid) return true;
    return false;
}

/* A worker that was killed between its fork and noting it left a child that only the kernel lists; this
 * process adopted it (PR_SET_CHILD_SUBREAPER), so it is in its list of children. */
void storm_end_survivors(unsigned workers) {
    char path[64];
    int pid;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "r");
    while (children != NULL && fscanf(children, "%d", &pid) == 1) {
        if (is_worker(pid, workers)) continue;
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    if (children != NULL) fclose(children);
    for (unsigned at = 0; at < workers; at++)
        if (storm_book->worker[at].pid == 0) storm_book->worker[at].child_pid = 0;
}

bool storm_quiesce(const char *usage_path, unsigned workers) {
    storm_book->pauses = true;
    for (unsigned at = 0; at < workers; at++)
        wait_for_rest(&storm_book->worker[at]);
    bool is_right = compare(usage_path, workers, "with survivors");
    storm_end_survivors(workers);
    is_right = compare(usage_path, workers, "without survivors") && is_right;
    storm_book->pauses = false;
    return is_right;
}
