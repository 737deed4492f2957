#include "exec_settings.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTINGS   "pgpu-environment"
#define LIST       "\"env\":["
#define MOST_BYTES (16u << 20)

struct text {
    char *bytes;
    size_t length;
};

static struct text read_file(const char *path) {
    struct text found = {0};
    struct stat status;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return found;
    if (fstat(descriptor, &status) == 0 && status.st_size > 0 && status.st_size <= MOST_BYTES)
        found.bytes = malloc((size_t)status.st_size + 1);
    if (found.bytes != NULL) {
        const ssize_t got = read(descriptor, found.bytes, (size_t)status.st_size);
        found.length = got > 0 ? (size_t)got : 0;
        found.bytes[found.length] = '\0';
    }
    close(descriptor);
    return found;
}

static const char *description_path(char **words) {
    for (; *words != NULL; words++) {
        if ((strcmp(*words, "--process") == 0 || strcmp(*words, "-p") == 0) && words[1] != NULL)
            return words[1];
        if (strncmp(*words, "--process=", 10) == 0) return *words + 10;
    }
    return NULL;
}

/* Letters, digits and a few signs: nothing that JSON would have to escape. */
static bool is_plain(const char *setting) {
    return *setting != '\0' &&
           strspn(setting, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_=-,./:") ==
               strlen(setting);
}

static bool is_set(const struct text *description, const char *setting) {
    char name[256];
    const size_t length = strcspn(setting, "=");
    snprintf(name, sizeof name, "\"%.*s=", (int)length, setting);
    return strstr(description->bytes, name) != NULL;
}

static void write_with(const char *path, const struct text *description, const char *at,
                       const struct text *added) {
    const int descriptor = open(path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    const size_t before = (size_t)(at - description->bytes);
    char *joined = malloc(description->length + added->length);
    if (joined != NULL) {
        memcpy(joined, description->bytes, before);
        memcpy(joined + before, added->bytes, added->length);
        memcpy(joined + before + added->length, at, description->length - before);
        /* Longer than before, so that nothing of the old text is left behind it. */
        if (pwrite(descriptor, joined, description->length + added->length, 0) < 0) perror("pgpu-runtime");
        free(joined);
    }
    close(descriptor);
}

/* The settings as elements of a JSON list, each with a comma behind it. */
static struct text as_elements(const struct text *settings, const struct text *description) {
    struct text elements = {.bytes = calloc(settings->length + 1, 4)};
    if (elements.bytes == NULL) return elements;
    for (size_t at = 0; at < settings->length; at += strlen(settings->bytes + at) + 1)
        if (is_plain(settings->bytes + at) && !is_set(description, settings->bytes + at))
            elements.length +=
                (size_t)sprintf(elements.bytes + elements.length, "\"%s\",", settings->bytes + at);
    return elements;
}

static void add_to(const char *path, const struct text *settings, const struct text *description) {
    const char *list = description->bytes != NULL ? strstr(description->bytes, LIST) : NULL;
    if (list == NULL || list[sizeof LIST - 1] == ']') return; /* in an empty list a comma would be wrong */
    const struct text elements = as_elements(settings, description);
    if (elements.length > 0) write_with(path, description, list + sizeof LIST - 1, &elements);
    free(elements.bytes);
}

void add_settings(char **words) {
    const char *path = description_path(words);
    const struct text settings = read_file(SETTINGS);
    const struct text description = path != NULL ? read_file(path) : (struct text){0};
    if (settings.bytes != NULL) add_to(path, &settings, &description);
    free(settings.bytes);
    free(description.bytes);
}
