#include "time/contention.h"

/* What is left of a turn after the switch to it: registers and shared memory of a GPU, saved and loaded at
 * its memory's bandwidth, take 1 to 4 % of a turn of 2 ms. */
#define KEPT 0.97
/* Less is a rounding error. */
#define LEAST_FRACTION 0.001

/* Jobs beyond the table's size are ignored: then more is charged than was used. */
static void join(struct pgpu_contention *contention, double fraction) {
    if (contention->most == PGPU_CONTENTION_MOST) return;
    contention->most++;
    for (unsigned n = contention->most; n > 0; n--)
        contention->likelihood[n] = contention->likelihood[n] * (1 - fraction) + contention->likelihood[n - 1] * fraction;
    contention->likelihood[0] *= 1 - fraction;
}

void pgpu_contention_join(struct pgpu_contention *contention, uint64_t busy_ns, uint64_t window_ns,
                          unsigned processes) {
    double left = window_ns == 0 ? 0 : (double)busy_ns / (double)window_ns;
    for (unsigned at = 0; left > LEAST_FRACTION && at < processes; at++, left -= 1)
        join(contention, left < 1 ? left : 1);
}

double pgpu_contention_own_part(const struct pgpu_contention *contention) {
    double part = 0;
    for (unsigned n = 1; n <= contention->most; n++)
        part += KEPT * contention->likelihood[n] / (n + 1);
    return contention->likelihood[0] + part;
}
