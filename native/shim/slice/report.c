#include "slice/report.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#ifndef PGPU_REFUSED
#define PGPU_REFUSED "CUDA"
#endif

struct line {
    char text[768];
    size_t length;
};

static void append(struct line *line, const char *words) {
    size_t length = strnlen(words, sizeof(line->text) - 1 - line->length);
    memcpy(line->text + line->length, words, length);
    line->length += length;
}

/* One write without stdio: other threads may hold stdio's locks, and stderr may be closed. */
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
    line.text[line.length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line.text, line.length);
    (void)ignored;
}
