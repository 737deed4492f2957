/* The daemon's side of its servers: start them, pass clients on to them, read their reports on clients, and
 * clean up after their end. */
#include "mps/control/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mps/control/log.h"

static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};

static bool own_program(char path[SIM_PATH_BYTES], const char *name) {
    ssize_t length = readlink("/proc/self/exe", path, SIM_PATH_BYTES - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = SIM_PATH_BYTES - (size_t)(slash + 1 - path);
    return (size_t)snprintf(slash + 1, room, "%s", name) < room;
}

/* In the child: exec the server, with its socket to the daemon as descriptor 3. It changes to its user
 * itself, after it has opened files that the user may not open. */
static void become_server(int fd, uid_t uid, const char *program) {
    if (dup2(fd, 3) != 3) _exit(127); /* clears FD_CLOEXEC, but not where `fd` is 3 already */
    if (fd == 3) fcntl(3, F_SETFD, 0);
    char user[16];
    snprintf(user, sizeof(user), "%u", (unsigned)uid);
    execl(program, "nvidia-cuda-mps-server", user, (char *)NULL);
    _exit(127);
}

static struct mps_server *free_place(void) {
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid == 0) return &mps_daemon.server[i];
    return NULL;
}

void mps_server_limit(struct mps_server *server) {
    struct mps_message message = {.word = MPS_LIMITS, .percentage = server->percentage};
    memcpy(message.limit_bytes, server->limit_bytes, sizeof(message.limit_bytes));
    mps_send(server->fd, &message, -1);
}

struct mps_server *mps_server_start(uid_t uid) {
    int pair[2];
    char program[SIM_PATH_BYTES];
    struct mps_server *server = free_place();
    if (server == NULL || !own_program(program, "nvidia-cuda-mps-server")) return NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return NULL;
    pid_t pid = fork();
    if (pid == 0) become_server(pair[1], uid, program);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return NULL;
    }
    mps_log("Starting new server %d for user %u", (int)pid, (unsigned)uid);
    *server = (struct mps_server){.pid = pid, .uid = uid, .fd = pair[0], .percentage = mps_daemon.percentage};
    memcpy(server->limit_bytes, mps_daemon.limit_bytes, sizeof(server->limit_bytes));
    mps_server_limit(server);
    return server;
}

struct mps_server *mps_server_of_pid(pid_t pid) {
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (pid > 0 && mps_daemon.server[i].pid == pid) return &mps_daemon.server[i];
    return NULL;
}

void mps_server_end(struct mps_server *server, bool is_forced) {
    struct mps_message message = {.word = MPS_DRAIN, .result = is_forced};
    server->is_ending = true;
    /* The socket of a server that hangs fills up, so that it cannot be asked to end. */
    if (!mps_send(server->fd, &message, -1) || (is_forced && server->client_count == 0))
        kill(server->pid, SIGKILL);
}

static void reap(struct mps_server *server) {
    mps_log("Server %d exited", (int)server->pid);
    close(server->fd);
    if (!server->is_ready)
        for (int i = 0; i < MPS_MOST_QUEUED; i++) {
            struct mps_queued *queued = &mps_daemon.queued[i];
            struct mps_message message = {.word = MPS_WELCOME, .result = 805};
            if (queued->fd < 0 || !queued->has_spoken || queued->uid != server->uid) continue;
            /* The server could not start: its waiting clients are refused, or it would be retried for ever.
             */
            mps_send(queued->fd, &message, -1);
            close(queued->fd);
            queued->fd = -1;
        }
    server->pid = 0;
}

static void join(struct mps_server *server, const struct mps_message *message) {
    if (server->client_count == MPS_MOST_CLIENTS) return;
    struct mps_client *client = &server->client[server->client_count++];
    *client =
        (struct mps_client){.pid = (pid_t)message->pid, .number = message->number, .gpus = message->gpus};
    memcpy(client->command, message->command, sizeof(client->command));
}

static void leave(struct mps_server *server, uint32_t number) {
    for (unsigned i = 0; i < server->client_count; i++)
        if (server->client[i].number == number) {
            memmove(&server->client[i], &server->client[i + 1],
                    (server->client_count - i - 1) * sizeof(server->client[0]));
            server->client_count--;
            return;
        }
}

static void handle_message(struct mps_server *server, const struct mps_message *message) {
    if (message->word == MPS_READY) {
        server->is_ready = true;
        server->status = MPS_ACTIVE;
        mps_log("NEW SERVER %d: Ready", (int)server->pid);
    } else if (message->word == MPS_STATUS && message->result >= 0 && message->result <= MPS_FAULTED) {
        server->status = (enum mps_status)message->result;
        mps_log("Server %d: status is %s", (int)server->pid, names[server->status]);
    } else if (message->word == MPS_JOINED) {
        join(server, message);
    } else if (message->word == MPS_LEFT) {
        leave(server, message->number);
    }
}

void mps_server_read(struct mps_server *server) {
    struct mps_message message;
    enum mps_received received;
    while ((received = mps_receive(server->fd, &message, NULL, MSG_DONTWAIT)) == MPS_GOT)
        handle_message(server, &message);
    if (received == MPS_GONE) reap(server);
}

static void refuse(struct mps_queued *queued, int result, const char *why) {
    struct mps_message message = {.word = MPS_WELCOME, .result = result};
    mps_log("NEW CLIENT %d from user %u: %s", (int)queued->pid, (unsigned)queued->uid, why);
    mps_send(queued->fd, &message, -1);
    close(queued->fd);
    queued->fd = -1;
}

static void give(struct mps_queued *queued, struct mps_server *server) {
    queued->hello.pid = (uint32_t)queued->pid;
    mps_log("NEW CLIENT %d from user %u: Server already exists", (int)queued->pid, (unsigned)queued->uid);
    if (!mps_send(server->fd, &queued->hello, queued->fd)) {
        refuse(queued, 805, "Server takes no client");
        return;
    }
    close(queued->fd);
    queued->fd = -1;
}

static struct mps_server *any_server(void) {
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) return &mps_daemon.server[i];
    return NULL;
}

/* One server at a time: it is drained before a server for another user starts. Clients stay queued meanwhile.
 */
static void settle(struct mps_queued *queued) {
    struct mps_server *server = any_server();
    if (geteuid() != 0 && queued->uid != geteuid()) {
        refuse(queued, 800, "User is not the owner of the control daemon");
    } else if (mps_daemon.is_quitting) {
        refuse(queued, 805, "Control daemon is shutting down");
    } else if (server == NULL) {
        if (mps_server_start(queued->uid) == NULL) refuse(queued, 805, "Server cannot be started");
    } else if (server->uid != queued->uid || server->is_ending) {
        if (!server->is_ending) mps_server_end(server, false);
    } else if (server->is_ready) {
        give(queued, server);
    }
}

void mps_give_out_clients(void) {
    for (int i = 0; i < MPS_MOST_QUEUED; i++)
        if (mps_daemon.queued[i].fd >= 0 && mps_daemon.queued[i].has_spoken) settle(&mps_daemon.queued[i]);
}
