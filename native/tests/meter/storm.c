/* meter-storm: checks the meter's protocol with processes that die.
 *
 *     run PATH WORKERS KILLS outside|points [forks]
 *         kill, replace, compare; prints one JSON object
 *     freeze PATH
 *         stop another process at every point: no process waits for it
 *     overtake PATH
 *         one process is refused, another takes dead bytes back, the first checks again
 *     check PATH BYTES
 *         take back what dead processes left; exit 1 unless BYTES remain
 *
 * Its only input is the path of a usage file, so it runs in a container as well. Several may run on one file,
 * each with a checkless `run` of `0` as its quiesce interval (STORM_SHARED=1), and one `check` at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "storm_check.h"

#define KILLS_BETWEEN_CHECKS 40

static const char *const point_names[] = {
#define NAME(name) #name,
    PGPU_METER_POINTS(NAME)
#undef NAME
};

struct storm {
    const char *usage_path;
    unsigned workers;
    unsigned kills;
    bool is_from_outside;
    bool forks;
    bool is_shared; /* with other storms on the same file: the sum of the living cannot be computed here */
    unsigned seed;
};

static void sleep_ns(long ns) {
    struct timespec moment = {.tv_nsec = ns};
    nanosleep(&moment, NULL);
}

static void make_book(void) {
    storm_book = mmap(NULL, sizeof(*storm_book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (storm_book == MAP_FAILED) exit(2);
}

static void arm(struct storm *storm, struct storm_worker *worker, unsigned birth) {
    worker->seed = storm->seed + birth * 7919;
    worker->forks = storm->forks && birth % 3 == 0;
    if (storm->is_from_outside) return;
    worker->arm = STORM_KILL_AT_POINT;
    worker->point = birth % PGPU_POINT_COUNT;
    /* A claim happens once in a life; the others come often. */
    bool is_claim = worker->point >= PGPU_POINT_CLAIM_MAPPED;
    worker->point_countdown = is_claim ? 1 : 1 + birth / PGPU_POINT_COUNT % 25;
}

static void bear(struct storm *storm, struct storm_worker *worker, unsigned birth) {
    memset((void *)worker, 0, sizeof(*worker));
    arm(storm, worker, birth);
    pid_t pid = fork();
    if (pid == 0) storm_work(storm->usage_path, worker);
    if (pid < 0) exit(2);
    worker->pid = pid;
}

/* Points inside a reap come only when there is something to reap; a worker that outlives its patience is
 * killed. */
#define PATIENCE_ROUNDS 400

static bool has_died(struct storm *storm, struct storm_worker *worker, unsigned *rounds) {
    int status;
    if (storm->is_from_outside ? rand_r(&storm->seed) % 4 == 0 : ++*rounds > PATIENCE_ROUNDS)
        kill(worker->pid, SIGKILL);
    if (waitpid(worker->pid, &status, WNOHANG) != worker->pid) return false;
    *rounds = 0;
    worker->pid = 0;
    if (WIFEXITED(status)) {
        fprintf(stderr, "a worker could not claim a slot\n");
        exit(1);
    }
    return true;
}

/* A worker that dies with a surviving child keeps its place in the book until the next check. */
static bool is_free(const struct storm *storm, const struct storm_worker *worker) {
    if (worker->child_pid != 0 && storm->is_shared) storm_end_survivors(storm->workers);
    return worker->child_pid == 0;
}

static uint64_t largest_loops, largest_cpu_ns, operations;

static void keep_figures(const struct storm_worker *worker) {
    if (worker->largest_loops > largest_loops) largest_loops = worker->largest_loops;
    if (worker->largest_cpu_ns > largest_cpu_ns) largest_cpu_ns = worker->largest_cpu_ns;
    operations += worker->operations;
}

static unsigned visit_workers(struct storm *storm, unsigned rounds[], unsigned *births) {
    unsigned deaths = 0;
    for (unsigned at = 0; at < storm->workers; at++) {
        struct storm_worker *worker = &storm_book->worker[at];
        if (worker->pid != 0 && has_died(storm, worker, &rounds[at])) {
            keep_figures(worker);
            deaths++;
        }
        if (worker->pid == 0 && is_free(storm, worker)) bear(storm, worker, (*births)++);
    }
    return deaths;
}

static void end_all(struct storm *storm) {
    for (unsigned at = 0; at < storm->workers; at++) {
        struct storm_worker *worker = &storm_book->worker[at];
        if (worker->pid != 0) {
            kill(worker->pid, SIGKILL);
            waitpid(worker->pid, NULL, 0);
            keep_figures(worker);
        }
        worker->pid = 0;
    }
    storm_end_survivors(storm->workers);
}

static void print_result(const struct storm *storm, unsigned kills, unsigned checks, bool is_right) {
    printf("{\"kills\": %u, \"from\": \"%s\", \"forks\": %s, \"workers\": %u, \"operations\": %llu, "
           "\"checks\": %u, ",
           kills, storm->is_from_outside ? "outside" : "points", storm->forks ? "true" : "false",
           storm->workers, (unsigned long long)operations, checks);
    printf("\"largest_loops\": %llu, \"largest_cpu_ns\": %llu, \"over_limit\": %llu, \"points\": {",
           (unsigned long long)largest_loops, (unsigned long long)largest_cpu_ns,
           (unsigned long long)storm_book->over_limit);
    for (unsigned point = 0; point < PGPU_POINT_COUNT; point++)
        printf("%s\"%s\": %llu", point == 0 ? "" : ", ", point_names[point],
               (unsigned long long)storm_book->reached[point]);
    printf("}, \"is_right\": %s}\n", is_right ? "true" : "false");
}

static bool is_empty(const char *usage_path, int64_t bytes) {
    if (!storm_reap_in_child(usage_path)) return false;
    for (unsigned gpu = 0; gpu < STORM_GPUS; gpu++)
        if (storm_book->checked_bytes[gpu] != bytes) {
            fprintf(stderr, "at the end GPU %u counts %lld, not %lld\n", gpu,
                    (long long)storm_book->checked_bytes[gpu], (long long)bytes);
            return false;
        }
    return true;
}

static bool nobody_runs(const struct storm *storm) {
    for (unsigned at = 0; at < storm->workers; at++)
        if (storm_book->worker[at].pid != 0) return false;
    return true;
}

static int run(struct storm *storm) {
    unsigned kills = 0, births = 0, checks = 0, kills_at_check = 0, rounds[STORM_MAX_WORKERS] = {0};
    bool is_right = true;
    while (kills < storm->kills && is_right) {
        kills += visit_workers(storm, rounds, &births);
        sleep_ns(300000);
        bool is_due = kills - kills_at_check >= KILLS_BETWEEN_CHECKS || nobody_runs(storm);
        if (storm->is_shared || !is_due) continue;
        is_right = storm_quiesce(storm->usage_path, storm->workers);
        kills_at_check = kills;
        checks++;
    }
    end_all(storm);
    if (!storm->is_shared) is_right = is_empty(storm->usage_path, 0) && is_right;
    is_right = is_right && storm_book->over_limit == 0;
    print_result(storm, kills, checks, is_right);
    return is_right ? 0 : 1;
}

static pid_t start(const char *usage_path, unsigned place, uint64_t operations, enum storm_arm arm,
                   enum pgpu_meter_point point) {
    struct storm_worker *worker = &storm_book->worker[place];
    memset((void *)worker, 0, sizeof(*worker));
    worker->stop_after_operations = operations;
    worker->seed = 11 + place + point;
    worker->arm = arm;
    worker->point = point;
    worker->point_countdown = arm == STORM_KILL_AT_POINT ? 20 : 1;
    pid_t pid = fork();
    if (pid == 0) storm_work(usage_path, worker);
    worker->pid = pid;
    return pid;
}

/* One dead slot for the next to claim and, behind it, one for it to reap that died inside an operation: else
 * no reap and no recovery would ever begin. */
static void leave_corpses(const char *usage_path) {
    pid_t first = start(usage_path, 2, 40, STORM_UNARMED, 0);
    while (!storm_book->worker[2].is_paused)
        sleep_ns(200000);
    pid_t second = start(usage_path, 3, 0, STORM_KILL_AT_POINT, PGPU_POINT_OP_TOTAL_CHANGED);
    waitpid(second, NULL, 0);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
}

/* The frozen sibling holds whatever it holds there; ours does all its work beside it. */
static bool work_beside_frozen(const char *usage_path, enum pgpu_meter_point point) {
    struct storm_worker *ours = &storm_book->worker[1];
    struct storm storm = {.usage_path = usage_path, .workers = 2};
    int status;
    leave_corpses(usage_path);
    pid_t frozen = start(usage_path, 0, 0, STORM_STOP_AT_POINT, point);
    if (waitpid(frozen, &status, WUNTRACED) != frozen || !WIFSTOPPED(status)) return false;
    start(usage_path, 1, 2000, STORM_UNARMED, point);
    while (!ours->is_paused)
        sleep_ns(200000);
    keep_figures(ours);
    bool is_done = ours->operations == 2000;
    end_all(&storm);
    return is_done;
}

static int freeze(const char *usage_path) {
    unsigned frozen = 0;
    for (unsigned point = 0; point < PGPU_POINT_COUNT; point++)
        if (work_beside_frozen(usage_path, point)) frozen++;
    printf("{\"points\": %d, \"passed_frozen\": %u, \"largest_loops\": %llu, \"largest_cpu_ns\": %llu}\n",
           PGPU_POINT_COUNT, frozen, (unsigned long long)largest_loops, (unsigned long long)largest_cpu_ns);
    return frozen == PGPU_POINT_COUNT && storm_book->over_limit == 0 ? 0 : 1;
}

/* Take the whole slice and die by it. On a stop signal it does so once it has its slot. */
static _Noreturn void fill(const char *usage_path, struct storm_worker *worker) {
    static struct pgpu_meter meter = PGPU_METER_INIT;
    storm_self = worker;
    if (pgpu_meter_claim(&meter, usage_path, STORM_GPUS) != PGPU_METER_OK) _exit(1);
    if (worker != NULL) raise(SIGSTOP);
    _exit(pgpu_meter_reserve(&meter, 0, STORM_LIMIT, STORM_LIMIT, NULL) == PGPU_METER_OK ? 0 : 1);
}

static pid_t start_filling(const char *usage_path, struct storm_worker *worker) {
    pid_t pid = fork();
    if (pid == 0) fill(usage_path, worker);
    return pid;
}

static bool has_filled(pid_t pid) {
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool has_stopped(pid_t pid) {
    int status;
    return waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status);
}

/* A corpse fills the slice. One process is refused and stops there, another takes the corpse's bytes back,
 * and the first finds nothing left to take back. */
static int overtake(const char *usage_path) {
    struct storm_worker *slow = &storm_book->worker[0];
    *slow = (struct storm_worker){
        .arm = STORM_STOP_AT_POINT, .point = PGPU_POINT_OP_REFUSED, .point_countdown = 1};
    pid_t pid = start_filling(usage_path, slow);
    if (!has_stopped(pid) || !has_filled(start_filling(usage_path, NULL))) return 1;
    kill(pid, SIGCONT);
    if (!has_stopped(pid) || !storm_reap_in_child(usage_path)) return 1;
    kill(pid, SIGCONT);
    return has_filled(pid) ? 0 : 1;
}

static int say_usage(void) {
    fprintf(stderr,
            "meter-storm run PATH WORKERS KILLS outside|points [forks] | freeze PATH | overtake PATH | "
            "check PATH BYTES\n");
    return 2;
}

int main(int count, char **words) {
    make_book();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (count == 3 && strcmp(words[1], "freeze") == 0) return freeze(words[2]);
    if (count == 3 && strcmp(words[1], "overtake") == 0) return overtake(words[2]);
    if (count == 4 && strcmp(words[1], "check") == 0) return is_empty(words[2], atoll(words[3])) ? 0 : 1;
    if (count < 6 || strcmp(words[1], "run") != 0) return say_usage();
    struct storm storm = {.usage_path = words[2],
                          .workers = (unsigned)atoi(words[3]),
                          .kills = (unsigned)atoi(words[4]),
                          .is_from_outside = strcmp(words[5], "outside") == 0,
                          .forks = count > 6 && strcmp(words[6], "forks") == 0,
                          .is_shared = getenv("STORM_SHARED") != NULL,
                          .seed = 1};
    if (storm.workers == 0 || storm.workers > STORM_MAX_WORKERS) return say_usage();
    return run(&storm);
}
