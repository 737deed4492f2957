/* One job's parent: it starts the launcher, carries output into the log, serves clients, owns the terminal,
 * reaps what the job leaves behind, and leaves one durable record of the job's end.
 *
 * It makes no decisions: another process holds the launcher's control pipe and sends control words. It sets
 * no time limit on the job and depends on no other process: the record is in the spool for the next one. One
 * thread, no heap. */
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "followers.h"
#include "record.h"
#include "seccomp.h"

#define LINGER_MS 30000 /* how long clients of a job that ended may take */
enum { REFUSED = 125, LOOK_MS = 500, ABANDONED_LOOK_MS = 60000, FIRST_FOLLOWER = 6 };
enum { MOST_REAPED = 64 /* in one round */, TERMINAL_BUFFER = 1 << 17 /* more than a pty keeps */ };

/* What would keep this process from its duties: its files must be readable for the next process, and it needs
 * a descriptor for each client. The launcher gets the values of the process that started this one. */
static const int RAISED[] = {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_CPU};
enum { RAISED_LIMITS = sizeof RAISED / sizeof *RAISED };

struct inheritance {
    mode_t umask;
    struct rlimit limits[RAISED_LIMITS];
};

struct job {
    const struct order *order;
    struct record record;
    struct job_log log;
    struct streams streams;
    struct inheritance inheritance;
    pid_t main; /* the launcher, later the job's command */
    int signals;
    bool has_ended, is_finished, has_quit;
    uint64_t ended_at_ms;
    struct followers followers;
};

static struct job job; /* static: a process has one, and the clients' table is large */

/* In the words of the launcher's own refusals, which the same reader parses. */
static _Noreturn void refuse(const char *stage, const char *detail) {
    dprintf(job.order->fds[ORDER_REPORT], "%d\t%s\t%s\n", errno, stage, detail);
    _exit(REFUSED);
}

static void lift_inheritance(struct inheritance *inherited) {
    inherited->umask = umask(0);
    for (int i = 0; i < RAISED_LIMITS; i++) {
        if (getrlimit(RAISED[i], &inherited->limits[i]) != 0) refuse("limits", "read");
        const struct rlimit raised = {inherited->limits[i].rlim_max, inherited->limits[i].rlim_max};
        if (setrlimit(RAISED[i], &raised) != 0) refuse("limits", "raise");
    }
}

static void restore_inheritance(const struct inheritance *inherited) {
    umask(inherited->umask);
    for (int i = 0; i < RAISED_LIMITS; i++)
        if (setrlimit(RAISED[i], &inherited->limits[i]) != 0) refuse("limits", "restore");
}

static void move_up(int *fd) {
    const int moved = fcntl(*fd, F_DUPFD_CLOEXEC, 16);
    if (moved < 0) refuse("descriptors", "duplicate");
    *fd = moved;
}

/* The launcher's descriptors: standard streams, control (3), report (4), record for its mark (5). */
static _Noreturn void become_launcher(void) {
    const int *given = job.order->fds;
    int fds[] = {given[ORDER_JOB_STDIN], given[ORDER_JOB_STDOUT], given[ORDER_JOB_STDERR],
                 given[ORDER_GO],        given[ORDER_REPORT],     job.record.fd};
    const int count = sizeof fds / sizeof *fds;
    for (int i = 0; i < count; i++)
        move_up(&fds[i]); /* above all targets, so that none is overwritten before its turn */
    for (int i = 0; i < count; i++)
        if (dup2(fds[i], i) < 0) refuse("descriptors", "place");
    syscall(SYS_close_range, count, ~0u, 0);
    restore_inheritance(&job.inheritance);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char *nothing[] = {NULL};
    execve(job.order->launcher[0], job.order->launcher, nothing);
    dprintf(4, "%d\tlauncher\t%s\n", errno, job.order->launcher[0]);
    _exit(REFUSED);
}

/* What a monitor may do that outlives an attack on it: end its own job. */
static void drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};
    if (syscall(SYS_capget, &header, data) != 0) return;
    for (int i = 0; i < 2; i++) {
        const uint32_t kept = i == 0 ? data[i].permitted & (1u << CAP_KILL) : 0;
        data[i].effective = data[i].permitted = kept;
        data[i].inheritable = 0;
    }
    syscall(SYS_capset, &header, data);
}

/* From here on, no input of another process can make this one do more than its loop needs. */
static bool confine(void) {
    drop_capabilities();
    return restrict_calls(job.main);
}

static void start(void) {
    job.main = fork();
    if (job.main == 0) become_launcher();
    if (job.main < 0) refuse("process", "fork");
    const char *stage = !record_start(&job.record, job.main) ? "record" : confine() ? NULL : "seccomp";
    if (stage != NULL) {
        const int error = errno;
        kill(job.main, SIGKILL); /* it has not been let go, so the command never ran */
        record_remove(&job.record);
        errno = error;
        refuse(stage, job.record.started);
    }
    /* Before the launcher's own words, since it waits for its environment. */
    dprintf(job.order->fds[ORDER_REPORT], "started\t%d\n", (int)job.main);
}

/* With the job's ends open here, its end would not be seen as the end of its output and its report. */
static void close_job_ends(void) {
    static const enum order_fd ends[] = {ORDER_GO,        ORDER_REPORT,     ORDER_WORDS,
                                         ORDER_JOB_STDIN, ORDER_JOB_STDOUT, ORDER_JOB_STDERR};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        close(job.order->fds[ends[i]]);
}

/* Another process may open the pipes of a job that runs elsewhere anew: with a write end here they never end.
 */
static void hold_pipes(void) {
    for (int i = 0; i < 2; i++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", job.streams.outputs[i]);
        if (open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) < 0) refuse("streams", "hold");
    }
}

/* As much as waits now, never until the end: what the job left behind may hold its pipes for ever. A
 * terminal's FIONREAD counts only what its line discipline has taken over, so it is read until it is empty.
 */
static void drain(int which) {
    const int fd = job.streams.outputs[which];
    int waiting = TERMINAL_BUFFER;
    if (fd < 0 || (!job.streams.has_terminal && ioctl(fd, FIONREAD, &waiting) != 0)) return;
    for (size_t done = 0; done < (size_t)waiting;) {
        const size_t got = streams_read(&job.streams, which, &job.log);
        if (got == 0) return;
        done += got;
    }
}

static void end(void) {
    drain(0);
    drain(1);
    log_save(&job.log);
    job.has_ended = true;
    job.ended_at_ms = now_ms();
    followers_output_grew(&job.followers);
}

static void execute(const struct control *control) {
    const unsigned long *numbers = control->numbers;
    switch (control->kind) {
    case CONTROL_SIGNAL: /* not reaped yet, so the PID is the job's */
        if (!job.has_ended && job.main > 0) kill(job.main, (int)numbers[0]);
        break;
    case CONTROL_WINDOW:
        streams_set_window(&job.streams, (unsigned short)numbers[0], (unsigned short)numbers[1]);
        break;
    case CONTROL_END:
        if (job.main == 0 && !job.has_ended) end();
        break;
    case CONTROL_FINISH:
        job.is_finished = true;
        log_save(&job.log); /* the ledger was written, so a disk that was full has room */
        break;
    case CONTROL_QUIT:
        job.has_quit = true;
        break;
    case NO_CONTROL:
        break;
    }
}

/* One word a round, so that a storm of words does not keep the job's output waiting. */
static void read_control(void) {
    char word[MOST_CONTROL];
    const ssize_t got = recv(job.order->fds[ORDER_CONTROL], word, sizeof word, MSG_DONTWAIT);
    if (got < 0) return;
    const struct control control = parse_control(word, (size_t)got);
    execute(&control);
}

static void main_ended(const siginfo_t *status, const struct rusage *usage) {
    end();
    /* Its parent gets the exit status then. */
    if (!record_end(&job.record, status, usage, job.log.dropped)) _exit(1);
    close(job.order->fds[ORDER_DONE]);
}

/* The one place that reaps: the job's main process, and orphans of the job as their subreaper. */
static void reap(void) {
    struct signalfd_siginfo signal;
    while (read(job.signals, &signal, sizeof signal) == sizeof signal)
        continue;
    for (int i = 0; i < MOST_REAPED; i++) {
        siginfo_t status = {0};
        struct rusage usage;
        /* Reaped once its end is recorded: if this process is killed before, its parent inherits the exit
         * status. The C library's waitid has no rusage. */
        if (syscall(SYS_waitid, P_ALL, 0, &status, WEXITED | WNOHANG | WNOWAIT, &usage) != 0) return;
        if (status.si_pid == 0) return;
        if (status.si_pid == job.main && !job.has_ended) main_ended(&status, &usage);
        waitid(P_PID, (id_t)status.si_pid, &status, WEXITED);
    }
    kill(getpid(),
         SIGCHLD); /* more may have ended, but a storm of orphans does not keep other work waiting */
}

static int add_poll(struct pollfd *polls, int count, int fd, short events) {
    polls[count] = (struct pollfd){events == 0 ? -1 : fd, events, 0};
    return count + 1;
}

/* Only a word ends the streams of a job that runs elsewhere. Without its directory no more can come; words
 * are sent before that is removed, so they are looked for afterwards. */
static bool is_abandoned(void) {
    struct stat status;
    int waiting = 0;
    if (job.order->launcher != NULL || fstat(job.order->fds[ORDER_LOCK], &status) != 0 ||
        status.st_nlink != 0)
        return false;
    ioctl(job.order->fds[ORDER_CONTROL], FIONREAD, &waiting);
    return waiting == 0;
}

static bool is_over(void) {
    if (job.has_quit) return true;
    if (!job.has_ended) return is_abandoned();
    /* It stays without clients too until the job is final, so that a client that connects now is served. */
    if (job.is_finished && job.followers.count == 0) return true;
    return now_ms() - job.ended_at_ms > LINGER_MS;
}

static void one_round(void) {
    struct pollfd polls[FIRST_FOLLOWER + MOST_FOLLOWERS];
    int which[MOST_FOLLOWERS];
    const bool is_held = !job.has_ended && followers_hold_back(&job.followers);
    const bool is_hung_up = job.streams.is_hung_up && !job.has_ended;
    const short out = is_held || job.has_ended ? 0 : POLLIN;
    /* A terminal that no process has open, or only one that the job left behind, is always ready and takes
     * nothing. */
    const bool takes_input = job.streams.stdin_end >= 0 && !is_hung_up && !job.has_ended;
    const short in = takes_input && (job.streams.input_length > 0 || job.streams.input_ends) ? POLLOUT : 0;
    int count = add_poll(polls, 0, job.signals, POLLIN);
    count = add_poll(polls, count, job.order->fds[ORDER_CONTROL], POLLIN);
    count = add_poll(polls, count, job.order->fds[ORDER_LISTENER], POLLIN);
    count = add_poll(polls, count, job.streams.outputs[0], is_hung_up ? 0 : out);
    count = add_poll(polls, count, job.streams.outputs[1], out);
    count = add_poll(polls, count, job.streams.stdin_end, in);
    const int more = followers_poll(&job.followers, polls + count, which);
    const bool is_to_look = is_held || job.has_ended || is_hung_up;
    const int rest_ms = is_to_look ? LOOK_MS : job.order->launcher == NULL ? ABANDONED_LOOK_MS : -1;
    if (poll(polls, (nfds_t)(count + more), rest_ms) < 0) return;
    if (polls[1].revents) read_control();
    if (polls[2].revents) followers_accept(&job.followers, job.order->fds[ORDER_LISTENER]);
    for (int i = 0; i < more; i++)
        if (polls[count + i].revents) followers_ready(&job.followers, which[i], polls[count + i].revents);
    for (int i = 0; i < 2; i++)
        if (polls[3 + i].revents) streams_read(&job.streams, i, &job.log);
    if (polls[5].revents) streams_push_input(&job.streams);
    if (polls[3].revents || polls[4].revents) followers_output_grew(&job.followers);
    if (is_hung_up && streams_read(&job.streams, 0, &job.log)) followers_output_grew(&job.followers);
    if (polls[0].revents) reap();
    if (job.is_finished && job.has_ended && !job.followers.has_ended) {
        job.followers.has_ended = true;
        followers_output_grew(&job.followers);
    }
}

_Noreturn void monitor(const struct order *order) {
    job.order = order;
    sigset_t all, child;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL); /* SIGPIPE too: a write to a closed pipe returns its error */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_DUMPABLE, 0);
    job.signals = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    if (job.signals < 0) refuse("signals", "signalfd");
    lift_inheritance(&job.inheritance);
    const bool has_launcher = order->launcher != NULL;
    if (has_launcher && !record_create(&job.record, order->fds[ORDER_SPOOL], order->job, order->start))
        refuse("spool", "record");
    log_open(&job.log, order->log, order->cap);
    job.streams = (struct streams){.outputs = {order->fds[ORDER_STDOUT], order->fds[ORDER_STDERR]},
                                   .has_terminal = order->has_terminal,
                                   .wants_stdin = order->wants_stdin,
                                   .stdin_end = order->wants_stdin ? order->fds[ORDER_INPUT] : -1};
    if (order->has_terminal) job.streams.outputs[1] = -1; /* the master side once more */
    for (int i = ORDER_STDOUT; i <= ORDER_INPUT; i++)
        fcntl(order->fds[i], F_SETFL, O_NONBLOCK);
    followers_init(&job.followers, &job.log, &job.streams, order->patience_ms);
    if (has_launcher) {
        start();
    } else {
        if (!order->has_terminal) hold_pipes();
        if (!confine()) refuse("seccomp", "filter");
    }
    close_job_ends();
    while (!is_over())
        one_round();
    followers_hang_up(&job.followers);
    _exit(0);
}
