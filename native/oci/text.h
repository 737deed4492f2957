/* What a program without a C library needs of <string.h>. */
#ifndef PGPU_OCI_TEXT_H
#define PGPU_OCI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

static inline size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length] != '\0')
        length++;
    return length;
}

static inline bool has_slash(const char *text) {
    while (*text != '\0' && *text != '/')
        text++;
    return *text == '/';
}

/* Whether two settings NAME=VALUE have the same name. */
static inline bool same_name(const char *one, const char *other) {
    while (*one == *other && *one != '=' && *one != '\0') {
        one++;
        other++;
    }
    return *one == *other || (*one == '\0' && *other == '=') || (*one == '=' && *other == '\0');
}

#endif
