/* What can be typed at the control daemon, and what it prints. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mps/control/daemon.h"
#include "driver/driver.h"
#include "mps/control/log.h"
#include "mps/mps_limit.h"

#define MOST_WORDS 6

struct line {
    char *word[MOST_WORDS + 1];
    int count;
    char *reply;
    size_t length;
};

static void print(struct line *line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t room = MPS_REPLY_BYTES - line->length;
    int written = vsnprintf(line->reply + line->length, room, format, arguments);
    va_end(arguments);
    if (written > 0) line->length += (size_t)written < room ? (size_t)written : room - 1;
}

static struct mps_server *named_server(struct line *line, int index) {
    struct mps_server *server = mps_server_of_pid((pid_t)strtol(line->word[index], NULL, 10));
    if (server == NULL) print(line, "Server %s not found\n", line->word[index]);
    return server;
}

static void get_server_list(struct line *line) {
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) print(line, "%d\n", (int)mps_daemon.server[i].pid);
}

static void get_server_status(struct line *line) {
    static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};
    const struct mps_server *server = named_server(line, 1);
    if (server != NULL) print(line, "%s\n", names[server->status]);
}

static void start_server(struct line *line) {
    char *end;
    long uid = strtol(line->word[2], &end, 10);
    if (strcmp(line->word[1], "-uid") != 0 || *end != '\0' || uid < 0)
        print(line, "Usage: start_server -uid <user id>\n");
    else if (geteuid() != 0 && (uid_t)uid != geteuid())
        print(line, "Permission denied\n");
    else if (mps_server_start((uid_t)uid) == NULL)
        print(line, "Server cannot be started\n");
}

static void shutdown_server(struct line *line) {
    struct mps_server *server = named_server(line, 1);
    if (server != NULL) mps_server_end(server, line->count > 2 && strcmp(line->word[2], "-f") == 0);
}

static void get_client_list(struct line *line) {
    const struct mps_server *server = named_server(line, 1);
    for (unsigned i = 0; server != NULL && i < server->client_count; i++)
        print(line, "%d\n", (int)server->client[i].pid);
}

static const char *uuid_of(const struct mps_client *client) {
    for (unsigned gpu = 0; gpu < mps_daemon.config.device_count; gpu++)
        if ((client->gpus >> gpu & 1u) != 0) return mps_daemon.config.gpu[gpu].uuid_text;
    return "";
}

/* The inode of a process's PID namespace; 0 where that cannot be seen. */
static unsigned long namespace_of(pid_t pid) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
    return stat(path, &status) == 0 ? (unsigned long)status.st_ino : 0;
}

static void ps(struct line *line) {
    print(line, "%-9s %-5s %-9s %-41s %-12s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    for (int i = 0; i < MPS_MOST_SERVERS; i++) {
        const struct mps_server *server = &mps_daemon.server[i];
        for (unsigned j = 0; server->pid != 0 && j < server->client_count; j++)
            print(line, "%-9d %-5u %-9d %-41.22s %-12lu %s\n", (int)server->client[j].pid,
                  server->client[j].number, (int)server->pid, uuid_of(&server->client[j]),
                  namespace_of(server->client[j].pid), server->client[j].command);
    }
}

static void get_device_client_list(struct line *line) {
    for (int g = 0; g < mps_daemon.gpu_count; g++) {
        print(line, "Device %d (%s):", g, mps_daemon.config.gpu[mps_daemon.gpus[g]].uuid_text);
        for (int i = 0; i < MPS_MOST_SERVERS; i++)
            for (unsigned j = 0; mps_daemon.server[i].pid != 0 && j < mps_daemon.server[i].client_count; j++)
                if ((mps_daemon.server[i].client[j].gpus >> mps_daemon.gpus[g] & 1u) != 0)
                    print(line, " %d", (int)mps_daemon.server[i].client[j].pid);
        print(line, "\n");
    }
}

static void print_percentage(struct line *line, uint32_t tenths) {
    print(line, "%u.%u\n", tenths / 10, tenths % 10);
}

static void get_default_percentage(struct line *line) {
    print_percentage(line, mps_daemon.percentage);
}

static bool read_percentage(struct line *line, int index, uint32_t *tenths) {
    if (mps_parse_percentage(line->word[index], tenths)) return true;
    print(line, "Invalid percentage %s\n", line->word[index]);
    return false;
}

static void set_default_percentage(struct line *line) {
    if (read_percentage(line, 1, &mps_daemon.percentage)) print_percentage(line, mps_daemon.percentage);
}

static void get_percentage(struct line *line) {
    const struct mps_server *server = named_server(line, 1);
    if (server != NULL) print_percentage(line, server->percentage);
}

static void set_percentage(struct line *line) {
    struct mps_server *server = named_server(line, 1);
    if (server == NULL || !read_percentage(line, 2, &server->percentage)) return;
    mps_server_limit(server);
    print_percentage(line, server->percentage);
}

/* The GPU that an ordinal among the daemon's names; -1, with a line: none. */
static int named_gpu(struct line *line, int index) {
    uint64_t unused[SIM_MAX_GPUS] = {0};
    char entry[80];
    snprintf(entry, sizeof(entry), "%s=1", line->word[index]);
    if (mps_apply_limits(entry, &mps_daemon.config, mps_daemon.gpus, mps_daemon.gpu_count, unused))
        for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
            if (unused[gpu] != 0) return (int)gpu;
    print(line, "Invalid device %s\n", line->word[index]);
    return -1;
}

static void print_limit(struct line *line, uint64_t bytes) {
    if (bytes == 0)
        print(line, "0\n");
    else if (bytes % (1ull << 30) == 0)
        print(line, "%lluG\n", (unsigned long long)(bytes >> 30));
    else if (bytes % (1ull << 20) == 0)
        print(line, "%lluM\n", (unsigned long long)(bytes >> 20));
    else
        print(line, "%llu\n", (unsigned long long)bytes);
}

static void get_default_limit(struct line *line) {
    int gpu = named_gpu(line, 1);
    if (gpu >= 0) print_limit(line, mps_daemon.limit_bytes[gpu]);
}

static bool read_limit(struct line *line, int index, uint64_t *bytes) {
    if (mps_parse_bytes(line->word[index], bytes)) return true;
    print(line, "Invalid limit %s\n", line->word[index]);
    return false;
}

static void set_default_limit(struct line *line) {
    int gpu = named_gpu(line, 1);
    if (gpu >= 0) read_limit(line, 2, &mps_daemon.limit_bytes[gpu]);
}

static void get_limit(struct line *line) {
    const struct mps_server *server = named_server(line, 1);
    int gpu = server == NULL ? -1 : named_gpu(line, 2);
    if (gpu >= 0) print_limit(line, server->limit_bytes[gpu]);
}

static void set_limit(struct line *line) {
    struct mps_server *server = named_server(line, 1);
    int gpu = server == NULL ? -1 : named_gpu(line, 2);
    if (gpu >= 0 && read_limit(line, 3, &server->limit_bytes[gpu])) mps_server_limit(server);
}

static void terminate_client(struct line *line) {
    struct mps_server *server = named_server(line, 1);
    struct mps_message message = {.word = MPS_TERMINATE, .pid = (uint32_t)strtoul(line->word[2], NULL, 10)};
    for (unsigned i = 0; server != NULL && i < server->client_count; i++)
        if (server->client[i].pid == (pid_t)message.pid) {
            mps_send(server->fd, &message, -1);
            return;
        }
    if (server != NULL) print(line, "Client %s not found\n", line->word[2]);
}

static void quit(struct line *line) {
    bool has_deadline = line->count > 2 && strcmp(line->word[1], "-t") == 0;
    mps_daemon.is_quitting = true;
    if (has_deadline)
        mps_daemon.forced_at_ns = sim_now_ns() + strtoull(line->word[2], NULL, 10) * 1000000000u;
    for (int i = 0; i < MPS_MOST_SERVERS; i++)
        if (mps_daemon.server[i].pid != 0) mps_server_end(&mps_daemon.server[i], false);
}

static void help(struct line *line);

static const struct command {
    const char *name;
    int argument_count; /* at least */
    void (*carry_out)(struct line *line);
    const char *usage;
} commands[] = {
    {"get_server_list", 0, get_server_list, ""},
    {"get_server_status", 1, get_server_status, "PID"},
    {"start_server", 2, start_server, "-uid UID"},
    {"shutdown_server", 1, shutdown_server, "PID [-f]"},
    {"get_client_list", 1, get_client_list, "PID"},
    {"get_device_client_list", 0, get_device_client_list, "[PID]"},
    {"get_default_active_thread_percentage", 0, get_default_percentage, ""},
    {"set_default_active_thread_percentage", 1, set_default_percentage, "PERCENTAGE"},
    {"get_active_thread_percentage", 1, get_percentage, "PID"},
    {"set_active_thread_percentage", 2, set_percentage, "PID PERCENTAGE"},
    {"get_default_device_pinned_mem_limit", 1, get_default_limit, "DEVICE"},
    {"set_default_device_pinned_mem_limit", 2, set_default_limit, "DEVICE VALUE"},
    {"get_device_pinned_mem_limit", 2, get_limit, "PID DEVICE"},
    {"set_device_pinned_mem_limit", 3, set_limit, "PID DEVICE VALUE"},
    {"terminate_client", 2, terminate_client, "SERVER_PID CLIENT_PID"},
    {"ps", 0, ps, ""},
    {"quit", 0, quit, "[-t TIMEOUT]"},
    {"help", 0, help, ""},
};

static void help(struct line *line) {
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        print(line, "%s %s\n", commands[i].name, commands[i].usage);
}

void mps_command(char *text, char reply[MPS_REPLY_BYTES]) {
    struct line line = {.reply = reply};
    for (char *rest = text, *word; line.count < MOST_WORDS && (word = strsep(&rest, " \t\n")) != NULL;)
        if (*word != '\0') line.word[line.count++] = word;
    if (line.count == 0) return;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, line.word[0]) != 0) continue;
        if (line.count - 1 < commands[i].argument_count)
            print(&line, "Usage: %s %s\n", commands[i].name, commands[i].usage);
        else
            commands[i].carry_out(&line);
        return;
    }
    print(&line, "Unknown command: %s\n", line.word[0]);
}
