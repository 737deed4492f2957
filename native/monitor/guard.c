/* What the guard and its agent exchange.
 *
 * The last two of the agent's words are the numbers of descriptors that it inherits: of its lock, and of its
 * end of a SOCK_SEQPACKET socket, a new one for each agent. Each message is a request of the agent, with
 * descriptors beside it (SCM_RIGHTS); JOB is a name of up to 32 bytes.
 *
 *     keep JOB    with one or two descriptors: the guard holds them, in place of what it held for this job
 *     drop JOB    the guard closes them; at the job's end
 *     take JOB    with a socket: the guard sends JOB over it, with copies of what it holds, and closes it
 *
 * There is no answer but that one, and the guard waits for none. Other messages are ignored, and their
 * descriptors closed, as are those for which no room is left: of 1024 jobs, or as many as the limit of open
 * files allows. What an agent sent before it was killed is carried out before the next one is started, which
 * takes over. Descriptors outlast agents that exit with 0 as well: the guard stays as long as a monitor of
 * theirs. */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "heartbeat.h"
#include "kept.h"
#include "record.h"

enum { FIRST_PAUSE_MS = 100, MOST_PAUSE_MS = 10000, LONG_LIFE_MS = 10000 };
enum { MOST_REAPED = 64 /* in one round */, NOT_EXECUTED = 127 };

struct guard {
    int lock, signals;
    int requests; /* of the agent; -1: it has closed its end */
    const char *spool;
    char **command;
    char **last_word; /* of the command: the number of the agent's end of the socket */
    char name[16];    /* of this program's processes, monitors included */
    pid_t agent;      /* 0: none runs */
    bool is_needed;   /* the last agent failed, or there was none yet */
    bool is_terminated;
    uint64_t started_at_ms, starts_at_ms, pause_ms;
    struct heartbeat heartbeat;
};

static void report(const char *subject) {
    dprintf(STDERR_FILENO, "pgpu-monitor: guard: %s: errno %d\n", subject, errno);
}

/* An agent that fails at once, each time, must not take a core. */
static void plan_restart(struct guard *guard) {
    const uint64_t now = now_ms();
    if (now - guard->started_at_ms >= LONG_LIFE_MS) guard->pause_ms = 0;
    guard->starts_at_ms = now + guard->pause_ms;
    if (guard->pause_ms == 0)
        guard->pause_ms = FIRST_PAUSE_MS;
    else if (guard->pause_ms < MOST_PAUSE_MS)
        guard->pause_ms = guard->pause_ms * 2 < MOST_PAUSE_MS ? guard->pause_ms * 2 : MOST_PAUSE_MS;
}

static void start_agent(struct guard *guard) {
    guard->started_at_ms = now_ms();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        report("socket");
        plan_restart(guard);
        return;
    }
    heartbeat_begin(&guard->heartbeat, guard->lock);
    const pid_t agent = fork();
    if (agent == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ends[1]);
        *guard->last_word = number;
        fcntl(ends[1], F_SETFD, 0);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execv(guard->command[0], guard->command);
        report(guard->command[0]);
        _exit(NOT_EXECUTED);
    }
    close(ends[1]);
    if (agent < 0) {
        report("fork");
        close(ends[0]);
        plan_restart(guard);
    } else {
        guard->agent = agent;
        guard->requests = ends[0];
    }
}

static void end_requests(struct guard *guard) {
    if (guard->requests >= 0) close(guard->requests);
    guard->requests = -1;
}

/* Without its file, no process can find the agent of this lock. */
static bool is_named(int lock) {
    struct stat status;
    return fstat(lock, &status) != 0 || status.st_nlink > 0;
}

static void agent_ended(struct guard *guard, const siginfo_t *end) {
    guard->agent = 0;
    if (guard->is_terminated) _exit(0);
    while (guard->requests >= 0 && kept_serve(guard->requests) > 0)
        continue;
    end_requests(guard);
    guard->is_needed = (end->si_code != CLD_EXITED || end->si_status != 0) && is_named(guard->lock);
    if (guard->is_needed)
        plan_restart(guard);
    else
        close(guard->lock); /* the next agent has its own guard, and need not wait until this one exits */
}

/* Reaps children that have ended; false if no child is left. */
static bool reap(struct guard *guard) {
    for (int i = 0; i < MOST_REAPED; i++) {
        siginfo_t end = {0};
        if (waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) != 0) return false;
        if (end.si_pid == 0) return true;
        struct process process;
        /* The name, since a process that is not reaped yet has no /proc/PID/exe any more. */
        if (end.si_pid != guard->agent && identify(end.si_pid, &process) &&
            strcmp(process.name, guard->name) != 0 && !record_reaped(guard->spool, &process, &end))
            report(guard->spool);
        waitid(P_PID, (id_t)end.si_pid, &end, WEXITED);
        if (end.si_pid == guard->agent) agent_ended(guard, &end);
    }
    kill(getpid(), SIGCHLD); /* more may have ended, but the agent is restarted first */
    return true;
}

/* A stopped or blocked agent starts no job; its successor finds the same state. */
static void kill_silent_agent(struct guard *guard) {
    if (guard->agent == 0 || !heartbeat_is_lost(&guard->heartbeat, guard->lock, guard->agent, now_ms()))
        return;
    dprintf(STDERR_FILENO, "pgpu-monitor: guard: the agent is silent, and is replaced\n");
    kill(guard->agent, SIGKILL); /* not reaped yet, so the PID is the agent's */
}

static void terminate(struct guard *guard) {
    if (guard->agent == 0) _exit(0);
    guard->is_terminated = true;
    kill(guard->agent, SIGTERM);
}

/* Waits for the end of a child, for SIGTERM, for a request, or for the time of the next start or of a look at
 * the agent. */
static void wait_for_event(struct guard *guard) {
    const uint64_t now = now_ms();
    const uint64_t at = guard->agent != 0 ? guard->heartbeat.looks_at_ms : guard->starts_at_ms;
    const int rest_ms = at > now ? (int)(at - now) : 0;
    struct pollfd ready[] = {{guard->signals, POLLIN, 0}, {guard->requests, POLLIN, 0}};
    poll(ready, 2, guard->agent != 0 || guard->is_needed ? rest_ms : -1);
    if (ready[1].revents != 0 && kept_serve(guard->requests) < 0) end_requests(guard);
    struct signalfd_siginfo signal;
    while (read(guard->signals, &signal, sizeof signal) == sizeof signal)
        if (signal.ssi_signo == SIGTERM) terminate(guard);
}

_Noreturn void guard(int lock, const char *spool, char **command, char **last_word) {
    struct guard guard = {.lock = lock,
                          .requests = -1,
                          .spool = spool,
                          .command = command,
                          .last_word = last_word,
                          .is_needed = true};
    sigset_t all, events;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&events);
    sigaddset(&events, SIGCHLD);
    sigaddset(&events, SIGTERM);
    guard.signals = signalfd(-1, &events, SFD_NONBLOCK | SFD_CLOEXEC);
    if (guard.signals < 0) report("signals");
    kept_init();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_GET_NAME, guard.name);
    if (chdir("/") != 0) report("/");
    for (;;) {
        const bool has_children = reap(&guard);
        kill_silent_agent(&guard);
        if (!has_children && !guard.is_needed) _exit(0);
        if (guard.agent == 0 && guard.is_needed && now_ms() >= guard.starts_at_ms)
            start_agent(&guard);
        else
            wait_for_event(&guard);
    }
}
