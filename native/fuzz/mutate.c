/* fuzz-readers COUNT FILES...: runs each file through the readers, and then COUNT mutations of them, the same
 * ones each time. Stands in for libFuzzer where clang is missing. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILES = 256, MOST_SIZE = 8192, MOST_CHANGES = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    uint8_t data[MOST_SIZE];
    size_t size;
} files[MOST_FILES];

static uint64_t state = 88172645463325252u;

/* Marsaglia's xorshift64 (2003). */
static size_t random_below(size_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % limit);
}

static size_t change(uint8_t *data, size_t size) {
    static const uint8_t EDGES[] = {0, 1, 4, 5, ' ', '0', '9', '(', ')', '-', 0x7f, 0x80, 0xff};
    const size_t place = random_below(size), end = place + random_below(size - place) + 1;
    switch (random_below(5)) {
    case 0:
        data[place] ^= (uint8_t)(1u << random_below(8));
        return size;
    case 1:
        data[place] = EDGES[random_below(sizeof EDGES)];
        return size;
    case 2: /* without this part */
        memmove(data + place, data + end, size - end);
        return size - (end - place) > 0 ? size - (end - place) : 1;
    case 3: /* with this part twice */
        if (size + (end - place) > MOST_SIZE) return size;
        memmove(data + end + (end - place), data + end, size - end);
        memcpy(data + end, data + place, end - place);
        return size + (end - place);
    default:
        return end;
    }
}

int main(int count, char **arguments) {
    const long mutations = count > 1 ? atol(arguments[1]) : 0;
    const size_t given = count > 2 ? (size_t)(count - 2) : 0;
    if (given == 0 || given > MOST_FILES) return 2;
    for (size_t i = 0; i < given; i++) {
        const int fd = open(arguments[i + 2], O_RDONLY);
        const ssize_t got = fd < 0 ? -1 : read(fd, files[i].data, MOST_SIZE);
        if (got <= 0) return 2;
        close(fd);
        files[i].size = (size_t)got;
        LLVMFuzzerTestOneInput(files[i].data, files[i].size);
    }
    for (long i = 0; i < mutations; i++) {
        uint8_t data[MOST_SIZE];
        const size_t which = random_below(given);
        size_t size = files[which].size;
        memcpy(data, files[which].data, size);
        for (size_t left = random_below(MOST_CHANGES) + 1; left > 0; left--)
            size = change(data, size);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%ld\n", mutations);
    return 0;
}
