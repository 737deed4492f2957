/* The control daemon: it starts servers, passes clients to them, and answers commands. It never blocks on a
 * peer: every socket is read when it is readable, and a peer that accepts no message counts as gone. */
#ifndef MPS_DAEMON_H
#define MPS_DAEMON_H

#include <sys/types.h>

#include "mps/mps_wire.h"

#define MPS_MOST_SERVERS 16
#define MPS_MOST_CLIENTS 256
#define MPS_MOST_QUEUED  512
#define MPS_REPLY_BYTES  65536

struct mps_client {
    pid_t pid;
    uint32_t number, gpus;
    char command[MPS_COMMAND_BYTES];
};

struct mps_server {
    pid_t pid; /* 0: this place is free */
    uid_t uid;
    int fd;
    bool is_ready, is_ending;
    enum mps_status status;
    uint32_t percentage;
    uint64_t limit_bytes[SIM_MAX_GPUS];
    struct mps_client client[MPS_MOST_CLIENTS];
    unsigned client_count;
};

/* A client without a server: it has sent nothing yet, or its server is being started or serves another user.
 */
struct mps_queued {
    int fd; /* -1: this place is free */
    pid_t pid;
    uid_t uid;
    bool has_spoken;
    struct mps_message hello;
};

struct mps_daemon {
    struct sim_config config;
    char state_directory[SIM_PATH_BYTES], place[SIM_PATH_BYTES];
    unsigned gpus[SIM_MAX_GPUS];
    int gpu_count;
    int client_socket, command_socket, lock_fd;
    uint32_t percentage; /* of servers to come */
    uint64_t limit_bytes[SIM_MAX_GPUS];
    char limit_text[SIM_MAX_GPUS][32];
    bool is_quitting;
    uint64_t forced_at_ns; /* when servers are ended however busy; 0: never */
    struct mps_server server[MPS_MOST_SERVERS];
    struct mps_queued queued[MPS_MOST_QUEUED];
};

extern struct mps_daemon mps_daemon;

/* Take the pipe directory; false, with a line on stderr: it cannot be had. */
bool mps_daemon_open(void);
/* Serve until the quit command. */
void mps_daemon_serve(void);

/* Start a server for a user; NULL: it cannot be. */
struct mps_server *mps_server_start(uid_t uid);
struct mps_server *mps_server_of_pid(pid_t pid);
/* Make a server end, at once or when its last client has left. */
void mps_server_end(struct mps_server *server, bool is_forced);
/* Read a message of a server; the server may be gone afterwards. */
void mps_server_read(struct mps_server *server);
/* Send a server the limits of later clients. */
void mps_server_limit(struct mps_server *server);
/* Give waiting clients to servers, as far as that goes now. */
void mps_give_out_clients(void);

/* Carry out a line and write what NVIDIA's program would print. */
void mps_command(char *line, char reply[MPS_REPLY_BYTES]);

/* Read lines from the standard input and have the daemon carry them out; the exit status. */
int mps_console(void);

#endif
