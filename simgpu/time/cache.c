#include "time/cache.h"

#include <math.h>

#define MOST_STEPS 40
#define CLOSE      1e-7

/* The chance that a line stays until it is touched again while `brought` lines come in each unit of time. */
static double stay(const struct sim_cache_class *class, double brought, double cache_lines) {
    return class->touches <= 0 ? 1 : exp(-brought * class->set_lines / class->touches / cache_lines);
}

/* Newton's step from above towards the lines that come in; the function is concave, so no step goes too far.
 */
static double step(double brought, double cache_lines, double stream_lines,
                   const struct sim_cache_class *class, unsigned count) {
    double sum = stream_lines, slope = 0;
    for (unsigned i = 0; i < count; i++) {
        double hits = stay(&class[i], brought, cache_lines);
        sum += class[i].touches * (1 - hits);
        slope += class[i].touches > 0 ? class[i].set_lines / cache_lines * hits : 0;
    }
    return slope >= 1 ? brought / 2 : brought - (sum - brought) / (slope - 1);
}

void sim_cache_share(double cache_lines, double stream_lines, struct sim_cache_class *class, unsigned count) {
    double most = stream_lines;
    for (unsigned i = 0; i < count; i++)
        most += class[i].touches;
    double brought = most;
    for (unsigned steps = 0; cache_lines > 0 && steps < MOST_STEPS; steps++) {
        double next = step(brought, cache_lines, stream_lines, class, count);
        next = next > stream_lines ? next : stream_lines;
        if (brought - next <= CLOSE * most) break;
        brought = next;
    }
    for (unsigned i = 0; i < count; i++)
        class[i].hits = cache_lines > 0 ? stay(&class[i], brought, cache_lines) : 0;
}
