/* Messages between a client, a server and the control daemon of the simulated MPS, over sequenced-packet
 * sockets: one message a packet. NVIDIA's protocol is not published; only the behaviour that is visible from
 * outside is the same (README.md). A peer is identified by the socket's credentials, never by the content of
 * its messages.
 *
 * A client connects to the daemon's socket `control`. The daemon passes the socket to a server, which from
 * then on is the client's only peer: clients survive the daemon's death. */
#ifndef SIM_MPS_WIRE_H
#define SIM_MPS_WIRE_H

#include "state/state.h"

#define MPS_WIRE            2u
#define MPS_COMMAND_BYTES   64
#define MPS_WHOLE           1000u /* tenths of a percent */
#define MPS_DEFAULT_PLACE   "/tmp/nvidia-mps"
#define MPS_SERVER_GPU_NONE UINT8_MAX

enum mps_word {
    MPS_HELLO =
        1, /* client to daemon: `gpus`, `command`; daemon to server with the client's socket, and `pid` */
    MPS_WELCOME,   /* server, or a daemon that refuses, to client: `result`, `server`, limits, `gpu_list` */
    MPS_OPEN,      /* client to server: may a context be made on `gpu`? */
    MPS_CLOSE,     /* client to server: a context on `gpu` is gone */
    MPS_ANSWER,    /* server to client: `result` of MPS_OPEN */
    MPS_FAULT,     /* either way: `result` is the error that CUDA calls return from now on */
    MPS_READY,     /* server to daemon: clients may come */
    MPS_STATUS,    /* server to daemon: `result` is an enum mps_status */
    MPS_JOINED,    /* server to daemon: client `pid`, `gpus`, `command` */
    MPS_LEFT,      /* server to daemon: client `pid` */
    MPS_TERMINATE, /* daemon to server: end client `pid` */
    MPS_LIMITS,    /* daemon to server: limits of clients to come */
    MPS_DRAIN,     /* daemon to server: end when the last client has left; `result` not 0: now */
};

enum mps_status { MPS_INITIALIZING, MPS_ACTIVE, MPS_FAULTED };

struct mps_message {
    uint32_t wire, word;
    int32_t result;
    uint32_t pid, gpu;
    uint32_t gpus;       /* bit g: GPU g of gpus.conf */
    uint32_t percentage; /* of the multiprocessors, in tenths; MPS_WHOLE: no limit */
    uint32_t number;     /* of a client among those of its server */
    uint64_t server;
    uint64_t limit_bytes[SIM_MAX_GPUS]; /* of device memory, by GPU of gpus.conf; 0: none */
    uint8_t gpu_list[SIM_MAX_GPUS];     /* the server's GPUs in its order, then MPS_SERVER_GPU_NONE */
    char command[MPS_COMMAND_BYTES];
};

/* Where the daemon's sockets are: CUDA_MPS_PIPE_DIRECTORY, else NVIDIA's default. */
const char *mps_place(void);

/* Connect to a socket in a directory; -1 where no process listens. */
int mps_connect(const char *directory, const char *name);

/* Send without waiting, with a descriptor unless it is -1; false: the peer is gone or takes nothing. */
bool mps_send(int fd, struct mps_message *message, int passed_fd);

enum mps_received { MPS_GOT, MPS_NOTHING, MPS_GONE };
/* Receive; `passed_fd` becomes -1 where none came, or where it is NULL none is taken. Anything malformed
 * counts as a peer that is gone. */
enum mps_received mps_receive(int fd, struct mps_message *message, int *passed_fd, int flags);

#endif
