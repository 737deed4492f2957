#include "mps/mps_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union passed {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

const char *mps_place(void) {
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return named != NULL && *named != '\0' ? named : MPS_DEFAULT_PLACE;
}

int mps_connect(const char *directory, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof(address.sun_path)) return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
}

bool mps_send(int fd, struct mps_message *message, int passed_fd) {
    union passed passed;
    message->wire = MPS_WIRE;
    struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr envelope = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed_fd >= 0) {
        memset(&passed, 0, sizeof(passed));
        passed.header.cmsg_level = SOL_SOCKET;
        passed.header.cmsg_type = SCM_RIGHTS;
        passed.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&passed.header), &passed_fd, sizeof(int));
        envelope.msg_control = &passed;
        envelope.msg_controllen = sizeof(passed);
    }
    /* This code also runs inside client programs: a SIGPIPE from a dead server would end them. */
    ssize_t sent;
    do
        sent = sendmsg(fd, &envelope, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*message);
}

static int taken_fd(struct msghdr *envelope) {
    int fd = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(envelope);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* A packet is one whole message of this version; `gpu` indexes arrays, so it is checked here for all uses. */
static bool is_well_formed(struct mps_message *message, ssize_t bytes) {
    if (bytes != (ssize_t)sizeof(*message) || message->wire != MPS_WIRE) return false;
    message->command[MPS_COMMAND_BYTES - 1] = '\0';
    return message->gpu < SIM_MAX_GPUS;
}

enum mps_received mps_receive(int fd, struct mps_message *message, int *passed_fd, int flags) {
    union passed passed;
    struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr envelope = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed_fd != NULL) {
        envelope.msg_control = &passed;
        envelope.msg_controllen = sizeof(passed);
        *passed_fd = -1;
    }
    ssize_t bytes;
    do
        bytes = recvmsg(fd, &envelope, flags | MSG_CMSG_CLOEXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return MPS_NOTHING;
    int taken = passed_fd != NULL && bytes >= 0 ? taken_fd(&envelope) : -1;
    if (is_well_formed(message, bytes)) {
        if (passed_fd != NULL) *passed_fd = taken;
        return MPS_GOT;
    }
    if (taken >= 0) close(taken);
    return MPS_GONE;
}
