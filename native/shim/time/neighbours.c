#include "time/neighbours.h"

#include <pthread.h>
#include <string.h>

#include "time/board.h"
#include "time/budget.h"
#include "cancellation.h"
#include "clock.h"
#include "time/neighbour_files.h"
#include "slice/slice.h"

#define WANTED_WITHIN_NS 20000000ull
/* Work in flight counts so long beyond its expected end: until its process would have found that it is done.
 * Where time is divided between users a crowd delays it by more than any forecast, and the crowd must not
 * take it for gone: so long at most after a death. */
#define BELIEVED_OF_USER_NS 1000000000ull
/* A job that waited for its budget so recently, or has had something in flight for so long, lacks time.
 */
#define LACKED_WITHIN_NS 100000000ull
#define STUCK_AFTER_NS   50000000ull
/* The other processes of our own job: no other job's figures are used for them. */
#define MOST_SIBLINGS 8u
#define STEPS         256u
/* A job with work in flight for a smaller part of the last period is not behind: it leaves the GPU idle by
 * itself. */
#define NEARLY_ALL 0.75

/* The rest of a turn after the switch to it: saving and loading a GPU's registers and shared memory at its
 * memory's bandwidth takes 1 to 4 % of a turn of 2 ms. */
#define KEPT 0.97
/* The shortest window for which a part is computed. Files that were not read again since count as they were:
 * work in flight goes on, up to its expected end. */
#define WINDOW_NS 1000000ull
/* Of how long work takes: by our part of the time, and twice as long. */
#define LEAST_SLOWDOWN 4u
#define MARGIN         2.0
/* Smaller parts are rounding errors. */
#define LEAST_FRACTION  0.001
#define MOST_CONTENDERS 255u

/* The part of the time with our work in flight that the GPU spent on it. Contexts with work take turns, so it
 * is 1/n where n have work; of each context only the part of the time with work in flight is published, and
 * these parts are treated as independent. */
struct contention {
    double likelihood[MOST_CONTENDERS + 1]; /* of each number of other jobs in flight beside us */
    unsigned most;
};
#define NO_CONTENTION {.likelihood = {1}}

/* Jobs beyond the table's size are ignored: then more is charged than was used. */
static void join(struct contention *contention, double fraction) {
    if (contention->most == MOST_CONTENDERS) return;
    contention->most++;
    for (unsigned n = contention->most; n > 0; n--)
        contention->likelihood[n] =
            contention->likelihood[n] * (1 - fraction) + contention->likelihood[n - 1] * fraction;
    contention->likelihood[0] *= 1 - fraction;
}

/* A job that had `left` processes in flight in the mean, of which `most` at most count. */
static void join_all(struct contention *contention, double left, unsigned most) {
    for (unsigned at = 0; left > LEAST_FRACTION && at < most; at++, left -= 1)
        join(contention, left < 1 ? left : 1);
}

/* 1 where no job joined; at least 1 / (1 + all processes that joined). */
static double own_part(const struct contention *contention) {
    double part = 0;
    for (unsigned n = 1; n <= contention->most; n++)
        part += KEPT * contention->likelihood[n] / (n + 1);
    return contention->likelihood[0] + part;
}

static pthread_mutex_t leaf = PTHREAD_MUTEX_INITIALIZER;
static struct pgpu_engagement own_engagement[PGPU_MAX_GPUS];
static struct window {
    uint64_t begun_at_ns, own_published_ns, begun_siblings_ns, own_queued_ns, begun_siblings_queued_ns;
    double part, counted;
} windows[PGPU_MAX_GPUS];

/* Our part of all time up to some moments, the latest last. */
static struct history {
    struct step {
        uint64_t at_ns;
        double own_ns;
    } step[STEPS];
    unsigned count;
} histories[PGPU_MAX_GPUS];

/* Another job's words on one of our GPUs; NULL: it does not use it. */
static const struct pgpu_board_gpu *row_of(const struct pgpu_other *other, int gpu) {
    const uint8_t *uuid = pgpu_slice_limit()->gpu[gpu].uuid;
    for (unsigned at = 0; other->is_read && at < other->board.gpu_count; at++)
        if (memcmp(other->board.gpu[at].uuid, uuid, sizeof(other->board.gpu[at].uuid)) == 0)
            return &other->board.gpu[at];
    return NULL;
}

bool pgpu_neighbours_by_user(int gpu) {
    uint64_t word = __atomic_load_n(&pgpu_slice_limit()->gpu[gpu].compute, __ATOMIC_RELAXED);
    bool is_divided = (word >> PGPU_COMPUTE_USER_SHIFT & PGPU_COMPUTE_USER_MASK) != 0;
    return is_divided && (word & PGPU_COMPUTE_SHARE_MASK) == 0;
}

static bool is_in_flight(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    uint64_t believed_ns = pgpu_neighbours_by_user(gpu) ? BELIEVED_OF_USER_NS : WANTED_WITHIN_NS;
    return row->busy_since_ns != 0 && now_ns < row->busy_until_ns + believed_ns;
}

static bool lacked(const struct pgpu_board_gpu *row, uint64_t now_ns) {
    return row->lacked_ns != 0 && now_ns < row->lacked_ns + LACKED_WITHIN_NS;
}

/* It has had something in flight for so long that the GPU, or a crowd on it, is what it waits for. */
static bool is_stuck(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    bool is_known = is_in_flight(gpu, row, now_ns) && row->occupied_since_ns != 0;
    return is_known && now_ns > row->occupied_since_ns + STUCK_AFTER_NS;
}

static bool wants(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    return now_ns < row->wanted_ns + WANTED_WITHIN_NS || is_in_flight(gpu, row, now_ns) ||
           lacked(row, now_ns);
}

/* All of a job's time with work in flight, with what is in flight now. */
static uint64_t busy_ns(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    bool is_begun = is_in_flight(gpu, row, now_ns) && row->busy_since_ns < now_ns;
    return row->busy_ns + (is_begun ? now_ns - row->busy_since_ns : 0);
}

/* The same from its launches on. */
static uint64_t queued_ns(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    return row->queued_ns + busy_ns(gpu, row, now_ns) - row->busy_ns;
}

static uint64_t occupied_ns(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    bool is_begun =
        is_in_flight(gpu, row, now_ns) && row->occupied_since_ns != 0 && row->occupied_since_ns < now_ns;
    return row->occupied_ns + (is_begun ? now_ns - row->occupied_since_ns : 0);
}

/* A moving average over a period. Busy time that was assumed too long is taken back in the same way, so
 * single steps may be below 0. */
static void follow_one(struct pgpu_average *average, uint64_t total_ns, double passed_ns, bool is_first) {
    double part = (double)(int64_t)(total_ns - average->total_ns) / passed_ns;
    if (!is_first) average->part += (part - average->part) * passed_ns / (passed_ns + (double)PGPU_PERIOD_NS);
    average->total_ns = total_ns;
}

static void follow(int gpu, struct pgpu_engagement *engagement, const struct pgpu_board_gpu *row,
                   uint64_t now_ns) {
    if (now_ns <= engagement->at_ns) return;
    double passed_ns = (double)(now_ns - engagement->at_ns);
    bool is_first = engagement->at_ns == 0;
    follow_one(&engagement->busy, busy_ns(gpu, row, now_ns), passed_ns, is_first);
    follow_one(&engagement->occupied, occupied_ns(gpu, row, now_ns), passed_ns, is_first);
    follow_one(&engagement->used, row->used_ns, passed_ns, is_first);
    engagement->at_ns = now_ns;
}

static bool is_lacking(int gpu, uint64_t now_ns) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL) return false;
    struct pgpu_board_gpu row = {.busy_since_ns = pgpu_board_load(&own->busy_since_ns),
                                 .busy_until_ns = pgpu_board_load(&own->busy_until_ns),
                                 .busy_ns = pgpu_board_load(&own->busy_ns)};
    follow(gpu, &own_engagement[gpu], &row, now_ns);
    return own_engagement[gpu].busy.part > NEARLY_ALL;
}

/* Relative to its guaranteed share of a period; a job without one, or that may not have more, is not behind.
 */
static double behind(const struct pgpu_board_gpu *row) {
    double share = (double)(row->share_word & PGPU_COMPUTE_SHARE_MASK) / 1e6;
    bool may_lag = share > 0 && (row->share_word & PGPU_COMPUTE_STRICT) == 0;
    return may_lag ? (double)(int64_t)row->budget_ns / (share * (double)PGPU_PERIOD_NS) : 0;
}

/* Time that a share guarantees is not divided between users, so what it covers is no use of the divided time.
 */
static double used_beyond(double share, double used_part) {
    double used = used_part - share;
    return used < 0 ? 0 : used > 1 ? 1 : used;
}

static void add(int gpu, struct pgpu_company *company, const struct pgpu_other *other,
                const struct pgpu_engagement *engagement, const struct pgpu_board_gpu *row,
                uint64_t seen_ns) {
    uint64_t word = row->share_word;
    uint64_t weight = (word >> PGPU_COMPUTE_WEIGHT_SHIFT) & PGPU_COMPUTE_WEIGHT_MASK;
    double share = (double)(word & PGPU_COMPUTE_SHARE_MASK) / 1e6;
    bool is_engaged = engagement->busy.part > NEARLY_ALL;
    bool is_occupied = engagement->occupied.part > NEARLY_ALL || is_stuck(gpu, row, seen_ns);
    struct pgpu_demand demand = {.weight = weight == 0 ? 1.0 : (double)weight,
                                 .used = used_beyond(share, engagement->used.part),
                                 .is_lacking = is_occupied || lacked(row, seen_ns)};
    company->count++;
    company->share += share;
    company->weight += demand.weight;
    if (is_engaged && behind(row) > company->behind) company->behind = behind(row);
    if (other->user == pgpu_neighbour_files_own_user())
        pgpu_users_add_own(&company->users, demand);
    else
        pgpu_users_add(&company->users, other->user, demand);
}

struct pgpu_company pgpu_neighbours_find_company(int gpu, uint64_t now_ns) {
    struct pgpu_company company = {0};
    int before = pgpu_lock_leaf(&leaf);
    pgpu_neighbour_files_refresh(now_ns);
    company.is_unknown = pgpu_neighbour_files_are_unknown();
    company.is_lacking = is_lacking(gpu, now_ns);
    /* As of the last read: a job does not stop wanting the GPU because its file was not read since. */
    uint64_t seen_ns = pgpu_neighbour_files_seen_ns();
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        struct pgpu_other *other = pgpu_neighbour_files_at(at);
        const struct pgpu_board_gpu *row = row_of(other, gpu);
        if (row == NULL || !wants(gpu, row, seen_ns)) continue;
        follow(gpu, &other->engagement[gpu], row, seen_ns);
        add(gpu, &company, other, &other->engagement[gpu], row, seen_ns);
    }
    pgpu_unlock_leaf(&leaf, before);
    return company;
}

/* The other processes of our own job: the board's figure less what this process added to it. */
static uint64_t siblings_ns(int gpu) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL) return 0;
    uint64_t all_ns = pgpu_board_load(&own->busy_ns);
    return all_ns > windows[gpu].own_published_ns ? all_ns - windows[gpu].own_published_ns : 0;
}

static uint64_t siblings_queued_ns(int gpu) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    uint64_t all_ns = own == NULL ? 0 : pgpu_board_load(&own->queued_ns);
    return all_ns > windows[gpu].own_queued_ns ? all_ns - windows[gpu].own_queued_ns : 0;
}

/* What was assumed too long is made up for by what follows, and so is what exceeds a window: it shows late.
 */
static uint64_t counted_until_ns(uint64_t begun_ns, uint64_t queued, uint64_t window_ns) {
    return pgpu_least_ns(pgpu_most_ns(begun_ns, queued), begun_ns + window_ns);
}

static void begin(int gpu, uint64_t now_ns, bool is_first) {
    uint64_t window_ns = now_ns - windows[gpu].begun_at_ns;
    windows[gpu].begun_at_ns = now_ns;
    windows[gpu].begun_siblings_ns = siblings_ns(gpu);
    uint64_t *siblings = &windows[gpu].begun_siblings_queued_ns, now_queued = siblings_queued_ns(gpu);
    *siblings = is_first ? now_queued : counted_until_ns(*siblings, now_queued, MOST_SIBLINGS * window_ns);
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        struct pgpu_other *other = pgpu_neighbour_files_at(at);
        const struct pgpu_board_gpu *row = row_of(other, gpu);
        other->begun_busy_ns[gpu] = row == NULL ? 0 : busy_ns(gpu, row, now_ns);
        if (row == NULL) continue;
        uint64_t *begun_ns = &other->begun_queued_ns[gpu], queued = queued_ns(gpu, row, now_ns);
        *begun_ns =
            is_first ? pgpu_most_ns(*begun_ns, queued) : counted_until_ns(*begun_ns, queued, window_ns);
    }
}

static double in_flight_of(uint64_t begun_ns, uint64_t busy, uint64_t window_ns) {
    return busy <= begun_ns ? 0 : (double)(busy - begun_ns) / (double)window_ns;
}

/* Every other user that wants the GPU counts as one process in flight at least. */
static void count_in_full(struct contention *contention, const struct pgpu_users *users) {
    for (unsigned at = 0; at < users->count; at++) {
        const struct pgpu_demand *user = &users->other[at].demand;
        if (user->is_lacking && user->used < 1) join(contention, 1 - user->used);
    }
}

/* Where time is divided between users, work counts as in flight from its launch on: then its context takes
 * part in the turns. Elsewhere from its first turn on. */
static void measure_window(int gpu, uint64_t now_ns) {
    struct window *window = &windows[gpu];
    uint64_t window_ns = now_ns - window->begun_at_ns, seen_ns = pgpu_neighbour_files_seen_ns();
    struct contention contention = NO_CONTENTION;
    struct pgpu_users users = {0};
    bool by_user = pgpu_neighbours_by_user(gpu);
    join_all(&contention,
             by_user ? in_flight_of(window->begun_siblings_queued_ns, siblings_queued_ns(gpu), window_ns)
                     : in_flight_of(window->begun_siblings_ns, siblings_ns(gpu), window_ns),
             MOST_SIBLINGS);
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        const struct pgpu_other *other = pgpu_neighbour_files_at(at);
        const struct pgpu_board_gpu *row = row_of(other, gpu);
        if (row == NULL) continue;
        double in_flight =
            by_user ? in_flight_of(other->begun_queued_ns[gpu], queued_ns(gpu, row, now_ns), window_ns)
                    : in_flight_of(other->begun_busy_ns[gpu], busy_ns(gpu, row, now_ns), window_ns);
        join_all(&contention, in_flight, 1);
        struct pgpu_demand demand = {.used = in_flight < 1 ? in_flight : 1,
                                     .is_lacking = wants(gpu, row, seen_ns)};
        if (other->user != pgpu_neighbour_files_own_user()) pgpu_users_add(&users, other->user, demand);
    }
    window->part = own_part(&contention);
    count_in_full(&contention, &users);
    window->counted = own_part(&contention) / window->part;
}

static const struct step *step_back(const struct history *history, unsigned back) {
    return &history->step[(history->count - back) % STEPS];
}

static void note(struct history *history, uint64_t now_ns, double part) {
    struct step next = {.at_ns = now_ns};
    if (history->count > 0) {
        const struct step *last = step_back(history, 1);
        if (now_ns <= last->at_ns) return;
        next.own_ns = last->own_ns + part * (double)(now_ns - last->at_ns);
    }
    history->step[history->count++ % STEPS] = next;
}

/* Before the first step and after the last one, the nearest step counts. */
static double own_until(const struct history *history, uint64_t at_ns) {
    unsigned kept = history->count < STEPS ? history->count : STEPS;
    const struct step *after = step_back(history, 1);
    if (at_ns >= after->at_ns) return after->own_ns;
    for (unsigned back = 2; back <= kept; back++) {
        const struct step *before = step_back(history, back);
        double passed_ns = (double)(after->at_ns - before->at_ns);
        if (before->at_ns <= at_ns)
            return before->own_ns +
                   (after->own_ns - before->own_ns) * (double)(at_ns - before->at_ns) / passed_ns;
        after = before;
    }
    return after->own_ns;
}

/* Our part between two moments, as far as the steps cover them; else the latest part. */
static double part_between(int gpu, uint64_t from_ns, uint64_t to_ns) {
    const struct history *history = &histories[gpu];
    unsigned kept = history->count < STEPS ? history->count : STEPS;
    double last = windows[gpu].part == 0 ? 1 : windows[gpu].part;
    if (kept < 2) return last;
    uint64_t first_ns = step_back(history, kept)->at_ns, last_ns = step_back(history, 1)->at_ns;
    if (from_ns < first_ns) from_ns = first_ns;
    if (to_ns <= from_ns || from_ns >= last_ns) return last;
    double beyond_ns = to_ns > last_ns ? (double)(to_ns - last_ns) : 0;
    double own_ns = own_until(history, to_ns) - own_until(history, from_ns) + beyond_ns * last;
    return own_ns / (double)(to_ns - from_ns);
}

void pgpu_neighbours_begin(int gpu, uint64_t now_ns) {
    int before = pgpu_lock_leaf(&leaf);
    pgpu_neighbour_files_refresh(now_ns);
    begin(gpu, now_ns, true);
    note(&histories[gpu], now_ns, 1);
    pgpu_unlock_leaf(&leaf, before);
}

double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns) {
    int before = pgpu_lock_leaf(&leaf);
    pgpu_neighbour_files_refresh(now_ns);
    if (now_ns >= windows[gpu].begun_at_ns + WINDOW_NS) {
        measure_window(gpu, now_ns);
        note(&histories[gpu], now_ns, windows[gpu].part);
        begin(gpu, now_ns, false);
    }
    double part = part_between(gpu, from_ns, to_ns);
    pgpu_unlock_leaf(&leaf, before);
    return part;
}

unsigned pgpu_neighbours_slowdown(int gpu) {
    int before = pgpu_lock_leaf(&leaf);
    double part = windows[gpu].part;
    pgpu_unlock_leaf(&leaf, before);
    return part == 0 || LEAST_SLOWDOWN * part > MARGIN ? LEAST_SLOWDOWN : (unsigned)(MARGIN / part);
}

double pgpu_neighbours_counted(int gpu) {
    if (!pgpu_neighbours_by_user(gpu)) return 1;
    int before = pgpu_lock_leaf(&leaf);
    double counted = windows[gpu].counted == 0 ? 1 : windows[gpu].counted;
    pgpu_unlock_leaf(&leaf, before);
    return counted;
}

void pgpu_neighbours_add_published(int gpu, uint64_t added_ns) {
    int before = pgpu_lock_leaf(&leaf);
    windows[gpu].own_published_ns += added_ns;
    pgpu_unlock_leaf(&leaf, before);
}

void pgpu_neighbours_add_queued(int gpu, uint64_t added_ns) {
    int before = pgpu_lock_leaf(&leaf);
    windows[gpu].own_queued_ns += added_ns;
    pgpu_unlock_leaf(&leaf, before);
}

static int state_before_fork;

void pgpu_neighbours_before_fork(void) {
    state_before_fork = pgpu_lock_leaf(&leaf);
}

void pgpu_neighbours_after_fork(bool is_child) {
    if (is_child) {
        pgpu_neighbour_files_forget();
        memset(windows, 0, sizeof(windows));
        memset(histories, 0, sizeof(histories));
        memset(own_engagement, 0, sizeof(own_engagement));
        pthread_mutex_init(&leaf, NULL);
        pgpu_cancellation_restore(state_before_fork);
        return;
    }
    pgpu_unlock_leaf(&leaf, state_before_fork);
}
