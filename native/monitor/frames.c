#include "frames.h"

#include <endian.h>
#include <string.h>

void put_frame_header(unsigned char *to, enum frame_kind kind, uint32_t length) {
    length = htobe32(length);
    to[0] = (unsigned char)kind;
    memcpy(to + 1, &length, sizeof length);
}

uint32_t frame_length(const unsigned char *header) {
    uint32_t length;
    memcpy(&length, header + 1, sizeof length);
    return be32toh(length);
}

struct text {
    const char *at, *end;
};

static void skip_spaces(struct text *text) {
    while (text->at < text->end && strchr(" \t\r\n", *text->at) != NULL && *text->at != '\0')
        text->at++;
}

static bool take(struct text *text, const char *word) {
    skip_spaces(text);
    const size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0) return false;
    text->at += length;
    return true;
}

static bool take_bool(struct text *text, bool *value) {
    *value = take(text, "true");
    return *value || take(text, "false");
}

static bool take_offset(struct text *text, uint64_t *value) {
    skip_spaces(text);
    const char *begin = text->at;
    *value = 0;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        const uint64_t digit = (uint64_t)(*text->at - '0');
        if (*value > (INT64_MAX - digit) / 10) return false; /* INT64_MAX itself: from now on */
        *value = *value * 10 + digit;
    }
    return text->at > begin;
}

bool parse_hello(const char *text, size_t length, struct hello *hello) {
    struct text rest = {text, text + length};
    unsigned seen = 0;
    if (length > MOST_HELLO || !take(&rest, "{")) return false;
    do {
        if (take(&rest, "\"offset\"")) {
            if (!take(&rest, ":") || !take_offset(&rest, &hello->offset)) return false;
            seen |= 1;
        } else if (take(&rest, "\"holds_back\"")) {
            if (!take(&rest, ":") || !take_bool(&rest, &hello->holds_back)) return false;
            seen |= 2;
        } else if (take(&rest, "\"owns_stdin\"")) {
            if (!take(&rest, ":") || !take_bool(&rest, &hello->owns_stdin)) return false;
            seen |= 4;
        } else {
            return false;
        }
    } while (take(&rest, ","));
    if (!take(&rest, "}")) return false;
    skip_spaces(&rest);
    return seen == 7 && rest.at == rest.end;
}
