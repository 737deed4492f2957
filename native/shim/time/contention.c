#include "time/contention.h"

/* What is left of a turn after the switch to it: registers and shared memory of a GPU, saved and loaded at
 * its memory's bandwidth, take 1 to 4 % of a turn of 2 ms. */
#define KEPT 0.97
/* Less is a rounding error. */
#define LEAST_FRACTION 0.001

/* Jobs beyond the table's size are ignored: then more is charged than was used. */
static void join(struct pgpu_contention *crowd, double fraction) {
    if (crowd->most == PGPU_CONTENTION_MOST) return;
    crowd->most++;
    for (unsigned n = crowd->most; n > 0; n--)
        crowd->likelihood[n] = crowd->likelihood[n] * (1 - fraction) + crowd->likelihood[n - 1] * fraction;
    crowd->likelihood[0] *= 1 - fraction;
}

void pgpu_contention_join(struct pgpu_contention *crowd, uint64_t busy_ns, uint64_t window_ns,
                          unsigned processes) {
    double left = window_ns == 0 ? 0 : (double)busy_ns / (double)window_ns;
    for (unsigned at = 0; left > LEAST_FRACTION && at < processes; at++, left -= 1)
        join(crowd, left < 1 ? left : 1);
}

double pgpu_contention_own_part(const struct pgpu_contention *crowd) {
    double part = 0;
    for (unsigned n = 1; n <= crowd->most; n++)
        part += KEPT * crowd->likelihood[n] / (n + 1);
    return crowd->likelihood[0] + part;
}
