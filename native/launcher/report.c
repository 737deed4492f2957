#include "report.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "digits.h"

_Noreturn void give_up(const char *stage, const char *detail) {
    char digits[MOST_DIGITS + 1] = {0};
    const char *number = write_digits(digits + MOST_DIGITS, (unsigned)errno);
    const char *words[] = {number, "\t", stage, "\t", detail, "\n"};
    struct iovec line[sizeof words / sizeof *words];
    const int count = sizeof words / sizeof *words;
    for (int i = 0; i < count; i++)
        line[i] = (struct iovec){.iov_base = (char *)words[i], .iov_len = strlen(words[i])};
    if (writev(REPORT_FD, line, count) < 0) writev(STDERR_FILENO, line, count);
    _exit(125);
}
