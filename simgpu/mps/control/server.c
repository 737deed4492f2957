/* `nvidia-cuda-mps-server` of the simulated driver: one user's clients on the daemon's GPUs. The daemon
 * starts it and passes it clients' sockets; it never blocks on one of them. A client is gone when its process
 * is, or when all descriptors of its socket are closed. */
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/driver.h"
#include "mps/control/log.h"
#include "meter.h"
#include "mps/mps_wire.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define DAEMON_FD    3
#define MOST_CLIENTS 256
#define OWN_BYTES    (30u << 20)

static struct pgpu_meter meter = PGPU_METER_INIT;

struct client {
    int fd, process_fd; /* fd -1: this place is free; process_fd -1: its process cannot be seen from here */
    pid_t pid;
    uint32_t number, gpus;
    unsigned contexts[SIM_MAX_GPUS];
    bool is_faulted;
};

static struct server {
    struct sim_config config;
    unsigned gpus[SIM_MAX_GPUS];
    int gpu_count;
    uint64_t id;
    uint32_t percentage, last_number;
    uint64_t limit_bytes[SIM_MAX_GPUS];
    enum mps_status status;
    bool has_daemon, is_draining;
    struct client client[MOST_CLIENTS];
} server;

static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};

static void send_to_daemon(struct mps_message *message) {
    if (server.has_daemon) mps_send(DAEMON_FD, message, -1);
}

static void set_status(enum mps_status status) {
    struct mps_message message = {.word = MPS_STATUS, .result = (int32_t)status};
    if (status == server.status) return;
    mps_log("Server status changed from %s to %s", names[server.status], names[status]);
    server.status = status;
    send_to_daemon(&message);
}

static bool has_clients(void) {
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd >= 0) return true;
    return false;
}

/* A fault is over when all affected clients are gone. */
static void recover_where_possible(void) {
    if (server.status != MPS_FAULTED) return;
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd >= 0 && server.client[i].is_faulted) return;
    set_status(MPS_ACTIVE);
}

static void drop(struct client *client) {
    struct mps_message message = {.word = MPS_LEFT, .pid = (uint32_t)client->pid, .number = client->number};
    mps_log("Client %d disconnected", (int)client->pid);
    close(client->fd);
    if (client->process_fd >= 0) close(client->process_fd);
    client->fd = -1;
    send_to_daemon(&message);
    recover_where_possible();
}

static void end(struct client *client, CUresult error) {
    struct mps_message message = {.word = MPS_FAULT, .result = (int32_t)error};
    client->is_faulted = true;
    if (!mps_send(client->fd, &message, -1)) drop(client);
}

/* A fault of one client fails all clients on every GPU that it could use: any of their memory may be corrupt.
 */
static void spread(const struct client *source, CUresult error) {
    uint32_t gpus = source->gpus;
    mps_log("Volta MPS: Client %d encountered a fatal GPU error", (int)source->pid);
    set_status(MPS_FAULTED);
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd >= 0 && (server.client[i].gpus & gpus) != 0) end(&server.client[i], error);
}

/* Source: NVIDIA's MPS documentation, Architecture: 16 client contexts before Volta, 48 from Volta on, 60
 * from Blackwell on (the last one was read in a summary, not in the document). */
static unsigned most_contexts(unsigned gpu) {
    uint64_t major = server.config.gpu[gpu].compute_major;
    return major < 7 ? 16 : major < 10 ? 48 : 60;
}

static unsigned context_count(unsigned gpu) {
    unsigned sum = 0;
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd >= 0) sum += server.client[i].contexts[gpu];
    return sum;
}

static void open_context(struct client *client, unsigned gpu) {
    struct mps_message message = {.word = MPS_ANSWER};
    if (context_count(gpu) < most_contexts(gpu))
        client->contexts[gpu]++;
    else
        message.result = CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    if (!mps_send(client->fd, &message, -1)) drop(client);
}

static void read_client(struct client *client) {
    struct mps_message message;
    enum mps_received received = mps_receive(client->fd, &message, NULL, MSG_DONTWAIT);
    if (received == MPS_NOTHING) return;
    if (received == MPS_GONE) {
        drop(client);
    } else if (message.word == MPS_OPEN) {
        open_context(client, message.gpu);
    } else if (message.word == MPS_CLOSE) {
        if (client->contexts[message.gpu] > 0) client->contexts[message.gpu]--;
    } else if (message.word == MPS_FAULT && message.result > 1) {
        spread(client, (CUresult)message.result);
    } else {
        drop(client);
    }
}

static struct client *free_place(void) {
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd < 0) return &server.client[i];
    return NULL;
}

/* A process can be a client without a context, so clients are bounded by the same number as contexts. */
static CUresult why_not(void) {
    unsigned count = 0, most = 0;
    for (int i = 0; i < MOST_CLIENTS; i++)
        count += server.client[i].fd >= 0;
    for (int i = 0; i < server.gpu_count; i++)
        most = most_contexts(server.gpus[i]) > most ? most_contexts(server.gpus[i]) : most;
    if (server.status == MPS_FAULTED || server.is_draining) return CUDA_ERROR_MPS_SERVER_NOT_READY;
    return count < most ? CUDA_SUCCESS : CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
}

static void fill_welcome(struct mps_message *message) {
    message->server = server.id;
    message->percentage = server.percentage;
    memcpy(message->limit_bytes, server.limit_bytes, sizeof(message->limit_bytes));
    memset(message->gpu_list, MPS_SERVER_GPU_NONE, sizeof(message->gpu_list));
    for (int i = 0; i < server.gpu_count; i++)
        message->gpu_list[i] = (uint8_t)server.gpus[i];
}

static uint32_t own_gpus(void) {
    uint32_t bits = 0;
    for (int i = 0; i < server.gpu_count; i++)
        bits |= 1u << server.gpus[i];
    return bits;
}

static void admit(const struct mps_message *hello, int fd) {
    struct mps_message welcome = {.word = MPS_WELCOME, .result = (int32_t)why_not()};
    struct client *client = welcome.result == CUDA_SUCCESS ? free_place() : NULL;
    fill_welcome(&welcome);
    mps_log("Received new client request");
    if (!mps_send(fd, &welcome, -1) || client == NULL) {
        close(fd);
        return;
    }
    *client = (struct client){.fd = fd,
                              .process_fd = (int)syscall(SYS_pidfd_open, (pid_t)hello->pid, 0),
                              .pid = (pid_t)hello->pid,
                              .number = ++server.last_number,
                              .gpus = hello->gpus & own_gpus()};
    struct mps_message joined = *hello;
    joined.word = MPS_JOINED;
    joined.gpus = client->gpus;
    joined.number = client->number;
    mps_log("New client %d connected", (int)client->pid);
    send_to_daemon(&joined);
}

static void terminate(pid_t pid) {
    for (int i = 0; i < MOST_CLIENTS; i++)
        if (server.client[i].fd >= 0 && server.client[i].pid == pid)
            end(&server.client[i], CUDA_ERROR_MPS_CLIENT_TERMINATED);
}

static void handle_message(const struct mps_message *message, int passed_fd) {
    if (message->word == MPS_HELLO && passed_fd >= 0) {
        admit(message, passed_fd);
        return;
    }
    if (passed_fd >= 0) close(passed_fd);
    if (message->word == MPS_TERMINATE) {
        terminate((pid_t)message->pid);
    } else if (message->word == MPS_LIMITS) {
        server.percentage = message->percentage;
        memcpy(server.limit_bytes, message->limit_bytes, sizeof(server.limit_bytes));
        mps_log("Active Threads Percentage set to %u.%u", server.percentage / 10, server.percentage % 10);
    } else if (message->word == MPS_DRAIN) {
        server.is_draining = true;
        if (message->result != 0) exit(0); /* the clients' sockets are closed, which is a fault for them */
    }
}

static void read_daemon(void) {
    struct mps_message message;
    int passed_fd;
    enum mps_received received;
    while ((received = mps_receive(DAEMON_FD, &message, &passed_fd, MSG_DONTWAIT)) == MPS_GOT)
        handle_message(&message, passed_fd);
    if (received != MPS_GONE) return;
    mps_log("Control daemon is gone");
    server.has_daemon = false;
    server.is_draining = true; /* no more clients can arrive */
}

static void serve_once(void) {
    static struct pollfd polled[1 + 2 * MOST_CLIENTS];
    static struct client *owner[1 + 2 * MOST_CLIENTS];
    nfds_t count = 0;
    /* poll skips entries with a negative descriptor. */
    polled[count++] = (struct pollfd){.fd = server.has_daemon ? DAEMON_FD : -1, .events = POLLIN};
    for (int i = 0; i < MOST_CLIENTS; i++) {
        if (server.client[i].fd < 0) continue;
        owner[count] = &server.client[i];
        polled[count++] = (struct pollfd){.fd = server.client[i].fd, .events = POLLIN};
        owner[count] = &server.client[i];
        polled[count++] = (struct pollfd){.fd = server.client[i].process_fd, .events = POLLIN};
    }
    if (poll(polled, count, -1) <= 0) return;
    /* Clients before the daemon: those that are gone make room for new ones. A fault of one client may drop
     * others within this loop, after which their descriptors no longer match. */
    for (nfds_t i = 1; i + 1 < count; i += 2) {
        if (polled[i].revents != 0 && owner[i]->fd == polled[i].fd) read_client(owner[i]);
        if (polled[i + 1].revents != 0 && owner[i]->fd == polled[i].fd) drop(owner[i]);
    }
    if (polled[0].revents != 0) read_daemon();
}

/* What a server holds of each GPU before it has a client. Source: the usual line of nvidia-smi,
 * `nvidia-cuda-mps-server 30MiB`. */
static bool hold_memory(const char *directory) {
    char path[SIM_PATH_BYTES];
    int fd = sim_shared_open(directory, "memory", sizeof(struct pgpu_usage));
    if (fd < 0 || !sim_state_path(directory, "memory", path)) return false;
    close(fd);
    if (pgpu_meter_claim(&meter, path, server.config.device_count) != PGPU_METER_OK) return false;
    for (int i = 0; i < server.gpu_count; i++) {
        unsigned gpu = server.gpus[i];
        if (pgpu_meter_reserve(&meter, gpu, OWN_BYTES, server.config.gpu[gpu].memory_bytes, NULL) !=
            PGPU_METER_OK)
            return false;
    }
    return true;
}

static bool read_gpus(void) {
    char directory[SIM_PATH_BYTES], problem[400];
    if (!sim_state_directory(directory) ||
        !sim_config_read(directory, &server.config, problem, sizeof(problem)))
        return false;
    server.gpu_count = sim_visible_gpus(&server.config, getenv("CUDA_VISIBLE_DEVICES"), server.gpus);
    return server.gpu_count > 0 && hold_memory(directory);
}

/* Groups first: setuid gives up the right to change them. */
static bool become(const char *user) {
    uid_t uid = (uid_t)strtoul(user, NULL, 10);
    return uid == geteuid() || (setgroups(0, NULL) == 0 && setgid((gid_t)uid) == 0 && setuid(uid) == 0);
}

int main(int count, char **words) {
    struct mps_message ready = {.word = MPS_READY};
    signal(SIGPIPE, SIG_IGN);
    mps_log_open("server.log", "Server");
    mps_log("Startup");
    for (int i = 0; i < MOST_CLIENTS; i++)
        server.client[i].fd = -1;
    if (count != 2 || !read_gpus() || !become(words[1])) {
        mps_log("MPS server failed to start");
        return 1;
    }
    server.id = (uint64_t)getpid() << 32 | (sim_now_ns() >> 10 & 0xffffffffu) | 1u;
    server.percentage = MPS_WHOLE;
    server.has_daemon = true;
    server.status = MPS_ACTIVE;
    mps_send(DAEMON_FD, &ready, -1);
    mps_log("Server has started");
    while (!server.is_draining || has_clients())
        serve_once();
    mps_log("Shutdown");
    return 0;
}
