#include "order.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digits.h"

#define VERSION    "pgpu-monitor 1"
#define MOST_WORDS ((off_t)16 << 20) /* several times what the kernel accepts as arguments */

static bool is_name(const char *text) {
    const size_t length = strlen(text);
    return length > 0 && length <= 64 && strspn(text, "0123456789abcdefghijklmnopqrstuvwxyz") == length;
}

static bool read_number(const char *text, unsigned long *number) {
    const char *behind = read_digits(text, 10, number);
    return behind != NULL && *behind == '\0';
}

static bool read_option(struct order *order, const char *word, char *value) {
    if (value == NULL) return false;
    if (strcmp(word, "--job") == 0)
        order->job = value;
    else if (strcmp(word, "--try") == 0)
        order->start = value;
    else if (strcmp(word, "--log") == 0)
        order->log = value;
    else if (strcmp(word, "--patience") == 0)
        return read_number(value, &order->patience_ms);
    else if (strcmp(word, "--cap") == 0)
        return read_number(value, &order->cap);
    else
        return false;
    return true;
}

static bool read_words(struct order *order, char **word) {
    if (*word == NULL || strcmp(*word++, VERSION) != 0) return false;
    for (; *word != NULL && strcmp(*word, "--") != 0; word++) {
        if (strcmp(*word, "--tty") == 0)
            order->has_terminal = true;
        else if (strcmp(*word, "--stdin") == 0)
            order->wants_stdin = true;
        else if (read_option(order, word[0], word[1]))
            word++;
        else
            return false;
    }
    if (order->job == NULL || order->start == NULL || order->log == NULL) return false;
    if (*word != NULL && word[1] == NULL) return false;
    if (*word != NULL) order->launcher = word + 1;
    return is_name(order->job) && is_name(order->start);
}

bool parse_order(struct order *order, char *text, size_t size, char **words) {
    if (size == 0 || text[size - 1] != '\0') return false;
    size_t count = 0;
    for (size_t at = 0; at < size; at += strlen(text + at) + 1)
        words[count++] = text + at;
    words[count] = NULL;
    return read_words(order, words);
}

/* The words stay mapped: the order points into them. */
static bool read_order(struct order *order) {
    struct stat status;
    const int fd = order->fds[ORDER_WORDS];
    if (fstat(fd, &status) != 0 || status.st_size <= 0 || status.st_size > MOST_WORDS) return false;
    const size_t size = (size_t)status.st_size;
    /* Read, not mapped: the sender could change a mapping later. Behind it, room for as many words as there
     * could be, of which only touched pages take memory. */
    const size_t aligned = (size + sizeof(char *) - 1) / sizeof(char *) * sizeof(char *);
    char *text = mmap(NULL, aligned + (size + 1) * sizeof(char *), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED || pread(fd, text, size, 0) != (ssize_t)size) return false;
    return parse_order(order, text, size, (char **)(text + aligned));
}

bool receive_order(int socket, struct order *order) {
    char byte;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE((ORDER_FDS + MOST_HELD) * sizeof(int))];
    } control;
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    do {
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0 || (message.msg_flags & MSG_CTRUNC) != 0) return false;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return false;
    if (header->cmsg_len < CMSG_LEN(sizeof order->fds)) return false;
    *order = (struct order){0};
    memcpy(order->fds, CMSG_DATA(header), sizeof order->fds);
    return read_order(order);
}
