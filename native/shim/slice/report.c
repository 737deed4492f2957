#include "slice/report.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#ifndef PGPU_REFUSED
#define PGPU_REFUSED "CUDA"
#endif

#define MIB (1024ull * 1024ull)

struct line {
    char text[768];
    size_t length;
};

static void append(struct line *line, const char *words) {
    size_t length = strnlen(words, sizeof(line->text) - 1 - line->length);
    memcpy(line->text + line->length, words, length);
    line->length += length;
}

static void append_number(struct line *line, uint64_t number) {
    char digits[24];
    size_t at = sizeof(digits);
    digits[--at] = '\0';
    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    append(line, digits + at);
}

/* In MiB up to one GiB, else in GiB with one decimal place. */
static void append_bytes(struct line *line, uint64_t bytes) {
    uint64_t mib = (bytes + MIB - 1) / MIB;
    if (mib < 1024) {
        append_number(line, mib);
        append(line, " MiB");
        return;
    }
    append_number(line, mib / 1024);
    append(line, ".");
    append_number(line, mib % 1024 * 10 / 1024);
    append(line, " GiB");
}

/* One write without stdio: other threads may hold stdio's locks, and stderr may be closed. */
static void write_line(struct line *line) {
    line->text[line->length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line->text, line->length);
    (void)ignored;
}

void pgpu_report_growth(uint64_t asked_bytes, uint64_t slice_bytes, bool waits) {
    static bool is_said[2];
    if (__atomic_exchange_n(&is_said[waits], true, __ATOMIC_SEQ_CST)) return;
    struct line line = {.length = 0};
    append(&line, "pgpu: asked for ");
    append_bytes(&line, asked_bytes);
    append(&line, " with ");
    append_bytes(&line, slice_bytes);
    append(&line, waits ? " reserved by pgpu; waiting for " : " reserved by pgpu; ");
    append_bytes(&line, asked_bytes > slice_bytes ? asked_bytes - slice_bytes : 0);
    if (!waits) append(&line, " more are not free");
    write_line(&line);
}

void pgpu_report_refusal(const char *why, const char *subject) {
    static bool is_said;
    if (__atomic_exchange_n(&is_said, true, __ATOMIC_SEQ_CST)) return;
    struct line line = {.length = 0};
    append(&line, "pgpu: " PGPU_REFUSED " is refused here: ");
    append(&line, why);
    if (subject != NULL) {
        append(&line, " (");
        append(&line, subject);
        append(&line, ")");
    }
    write_line(&line);
}
