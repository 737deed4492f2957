#include "identity.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Field 22, counted after the last ')', since a process's name may hold anything. */
static uint64_t start_time_ticks(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* The link reads `pid:[4026531836]`. */
static uint64_t pid_namespace(void) {
    char text[64];
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof(text) - 1);
    if (length <= 0) return 0;
    text[length] = '\0';
    char *at = strchr(text, '[');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

void pgpu_meter_sign(struct pgpu_usage_slot *slot) {
    uint64_t ticks = start_time_ticks(), namespace = pid_namespace();
    __atomic_store_n(&slot->start_time_ticks, ticks, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->pid_namespace, namespace, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->pid, (uint32_t)getpid(), __ATOMIC_RELEASE);
}

/* The child has no mapping (MADV_DONTFORK), and no thread of it will unlock the mutex. B's descriptor stays
 * open: so the parent's memory stays counted while the child may still hold it. */
static void start_over(struct pgpu_meter *meter) {
    meter->usage = NULL;
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&meter->leaf, &fresh, sizeof(fresh));
}

/* Read without the mutex: in such a child no thread would ever unlock it. */
bool pgpu_meter_is_forked(const struct pgpu_meter *meter) {
    return __atomic_load_n(&meter->usage, __ATOMIC_ACQUIRE) != NULL && !pgpu_meter_is_claimed(meter);
}

void pgpu_meter_forget_if_forked(struct pgpu_meter *meter) {
    if (pgpu_meter_is_forked(meter)) start_over(meter);
}

void pgpu_meter_before_fork(struct pgpu_meter *meter) {
    pthread_mutex_lock(&meter->leaf);
}

void pgpu_meter_after_fork_in_parent(struct pgpu_meter *meter) {
    pthread_mutex_unlock(&meter->leaf);
}

void pgpu_meter_after_fork_in_child(struct pgpu_meter *meter) {
    start_over(meter);
}
