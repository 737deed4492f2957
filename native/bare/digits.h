/* Numbers as text and back, without the C library's formats. */
#ifndef PGPU_LAUNCHER_DIGITS_H
#define PGPU_LAUNCHER_DIGITS_H

#include <stddef.h>

#define MOST_DIGITS 10 /* of an unsigned number */

/* Write the decimal digits of a number directly before `end`; returns where they begin. */
static inline char *write_digits(char *end, unsigned number) {
    do
        *--end = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return end;
}

/* Returns what follows the digits at `text`; NULL where there are none, or too many for the number. */
static inline const char *read_digits(const char *text, unsigned base, unsigned long *number) {
    const char *at = text;
    *number = 0;
    for (unsigned digit; (digit = (unsigned)*at - '0') < base; at++)
        if (__builtin_mul_overflow(*number, base, number) || __builtin_add_overflow(*number, digit, number))
            return NULL;
    return at != text ? at : NULL;
}

#endif
