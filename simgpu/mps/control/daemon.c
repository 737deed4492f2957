#include "mps/control/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/driver.h"
#include "mps/control/log.h"
#include "mps/mps_limit.h"

#define LINE_BYTES          1024
#define COMMAND_PATIENCE_MS 5000

struct mps_daemon mps_daemon;

static bool path_of(const char *name, char path[SIM_PATH_BYTES]) {
    return sim_state_path(mps_daemon.place, name, path);
}

static int listen_at(const char *name, mode_t mode) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[SIM_PATH_BYTES];
    if (!path_of(name, path) || strlen(path) >= sizeof(address.sun_path)) return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    unlink(path); /* left by a daemon that died: this one holds the lock */
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 && chmod(path, mode) == 0 &&
        listen(fd, 128) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The kernel releases the lock when the daemon dies, also by SIGKILL; a PID file would be left behind. */
static bool take_lock(void) {
    char path[SIM_PATH_BYTES];
    if (!path_of("control_lock", path)) return false;
    mps_daemon.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return mps_daemon.lock_fd >= 0 && flock(mps_daemon.lock_fd, LOCK_EX | LOCK_NB) == 0;
}

static bool complain(const char *text) {
    fprintf(stderr, "%s\n", text);
    return false;
}

static bool read_gpus(void) {
    char problem[400];
    if (!sim_state_directory(mps_daemon.state_directory))
        return complain("no state directory: set PGPU_SIMGPU_DIR to one that holds gpus.conf");
    if (!sim_config_read(mps_daemon.state_directory, &mps_daemon.config, problem, sizeof(problem)))
        return complain(problem);
    mps_daemon.gpu_count =
        sim_visible_gpus(&mps_daemon.config, getenv("CUDA_VISIBLE_DEVICES"), mps_daemon.gpus);
    return mps_daemon.gpu_count > 0 || complain("no GPU is visible");
}

static void read_defaults(void) {
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
               *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    mps_daemon.percentage = MPS_WHOLE;
    if (percentage != NULL) mps_parse_percentage(percentage, &mps_daemon.percentage);
    if (list != NULL && !mps_apply_limits(list, &mps_daemon.config, mps_daemon.gpus, mps_daemon.gpu_count,
                                          mps_daemon.limit_bytes))
        memset(mps_daemon.limit_bytes, 0, sizeof(mps_daemon.limit_bytes));
}

static void write_pid(void) {
    char path[SIM_PATH_BYTES];
    FILE *file = path_of("nvidia-cuda-mps-control.pid", path) ? fopen(path, "we") : NULL;
    if (file == NULL) return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

bool mps_daemon_open(void) {
    for (int i = 0; i < MPS_MOST_QUEUED; i++)
        mps_daemon.queued[i].fd = -1;
    if ((size_t)snprintf(mps_daemon.place, SIM_PATH_BYTES, "%s", mps_place()) >= SIM_PATH_BYTES)
        return complain("the pipe directory's name is too long");
    mkdir(mps_daemon.place, 0755);
    if (!take_lock()) return complain("An instance of this daemon is already running");
    if (!read_gpus()) return false;
    read_defaults();
    if (!mps_log_open("control.log", "Control")) return complain("Failed to open control log");
    mps_daemon.client_socket = listen_at("control", 0666);
    mps_daemon.command_socket = listen_at("control_privileged", 0600);
    if (mps_daemon.client_socket < 0 || mps_daemon.command_socket < 0)
        return complain("Cannot make sockets in the pipe directory");
    write_pid();
    mps_log("Starting control daemon using socket %s/control", mps_daemon.place);
    mps_log("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s",
            mps_daemon.place);
    return true;
}

static struct mps_queued *free_queue_place(void) {
    for (int i = 0; i < MPS_MOST_QUEUED; i++)
        if (mps_daemon.queued[i].fd < 0) return &mps_daemon.queued[i];
    return NULL;
}

static void accept_clients(void) {
    int fd;
    while ((fd = accept4(mps_daemon.client_socket, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct ucred peer;
        socklen_t bytes = sizeof(peer);
        struct mps_queued *queued = free_queue_place();
        if (queued == NULL || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
            close(fd);
            continue;
        }
        mps_log("Accepting connection...");
        *queued = (struct mps_queued){.fd = fd, .pid = peer.pid, .uid = peer.uid};
    }
}

/* A queued client sends one hello and then waits for a welcome; anything else ends its connection. */
static void read_queued(struct mps_queued *queued) {
    struct mps_message message;
    enum mps_received received = mps_receive(queued->fd, &message, NULL, MSG_DONTWAIT);
    if (received == MPS_NOTHING) return;
    if (received == MPS_GONE || message.word != MPS_HELLO || queued->has_spoken) {
        close(queued->fd);
        queued->fd = -1;
        return;
    }
    queued->hello = message;
    queued->has_spoken = true;
    mps_log("NEW CLIENT %d from user %u: Server is not ready, push client to pending list", (int)queued->pid,
            (unsigned)queued->uid);
}

static bool may_command(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
    return peer.uid == geteuid() || peer.uid == 0;
}

/* The console sends its line as soon as it is connected. The wait is bounded, since the daemon serves nothing
 * else meanwhile. */
static void answer_command(int fd) {
    static char reply[MPS_REPLY_BYTES];
    char line[LINE_BYTES];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (!may_command(fd) || poll(&wait, 1, COMMAND_PATIENCE_MS) != 1) return;
    ssize_t length = recv(fd, line, sizeof(line) - 1, MSG_DONTWAIT);
    if (length <= 0) return;
    line[length] = '\0';
    mps_log("User command: %s", line);
    reply[0] = '\0';
    mps_command(line, reply);
    send(fd, reply, strlen(reply) + 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void accept_commands(void) {
    int fd;
    while ((fd = accept4(mps_daemon.command_socket, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        answer_command(fd);
        close(fd);
    }
}

struct polled {
    struct pollfd entry[2 + MPS_MOST_SERVERS + MPS_MOST_QUEUED];
    void *owner[2 + MPS_MOST_SERVERS + MPS_MOST_QUEUED];
    nfds_t count;
};

static void add(struct polled *polled, int fd, void *owner) {
    polled->entry[polled->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    polled->owner[polled->count++] = owner;
}

static void collect(struct polled *polled) {
    polled->count = 0;
    add(polled, mps_daemon.client_socket, NULL);
    add(polled, mps_daemon.command_socket, NULL);
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) add(polled, mps_daemon.server[i].fd, &mps_daemon.server[i]);
    for (int i = 0; i < MPS_MOST_QUEUED; i++)
        if (mps_daemon.queued[i].fd >= 0) add(polled, mps_daemon.queued[i].fd, &mps_daemon.queued[i]);
}

static bool is_server(const void *owner) {
    return (const struct mps_server *)owner >= mps_daemon.server &&
           (const struct mps_server *)owner < mps_daemon.server + MPS_MOST_SERVERS;
}

/* Known peers before new connections: a client that leaves frees its place. Connections that are accepted
 * here are polled in the next round. */
static void handle(const struct polled *polled) {
    for (nfds_t i = 2; i < polled->count; i++) {
        if (polled->entry[i].revents == 0) continue;
        if (is_server(polled->owner[i]))
            mps_server_read(polled->owner[i]);
        else
            read_queued(polled->owner[i]);
    }
    if (polled->entry[0].revents != 0) accept_clients();
    if (polled->entry[1].revents != 0) accept_commands();
}

static bool has_server(void) {
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) return true;
    return false;
}

/* After `quit -t SECONDS`, servers that are still alive at that time are killed. */
static void force_where_due(void) {
    if (mps_daemon.forced_at_ns == 0 || sim_now_ns() < mps_daemon.forced_at_ns) return;
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) kill(mps_daemon.server[i].pid, SIGKILL);
    mps_daemon.forced_at_ns = 0;
}

static void leave_place(void) {
    static const char *const left[] = {"control", "control_privileged", "nvidia-cuda-mps-control.pid",
                                       "control_lock"};
    char path[SIM_PATH_BYTES];
    mps_log("Exit");
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
        if (path_of(left[i], path)) unlink(path);
}

void mps_daemon_serve(void) {
    static struct polled polled;
    while (!mps_daemon.is_quitting || has_server()) {
        collect(&polled);
        if (poll(polled.entry, polled.count, mps_daemon.forced_at_ns == 0 ? -1 : 50) > 0) handle(&polled);
        force_where_due();
        mps_give_out_clients();
        /* No SIGCHLD handler is needed: a server's end closes its socket, which wakes poll. */
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    leave_place();
}
