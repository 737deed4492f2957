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
/* Where time is divided between users, all processes of one launch at once when no other user wants the GPU:
 * not just because another's program waits for a processor. */
#define WANTED_OF_USER_NS 50000000ull
/* Work in flight counts so long beyond its expected end: until its process would have found that it is done.
 * Where time is divided between users a crowd delays it by more than any forecast, and the crowd must not
 * take it for gone: so long at most after a death. */
#define BELIEVED_OF_USER_NS 1000000000ull
/* A job that waited for its budget so recently, or has had something in flight for so long, lacks time.
 */
#define LACKED_WITHIN_NS 100000000ull
#define STUCK_AFTER_NS   50000000ull
/* Of one job's processes so many count at most; of another job's where shares depend on it, one. */
#define MOST_PROCESSES 64u
#define STEPS          256u
/* A job with work in flight for a smaller part of the last period is not behind: it leaves the GPU idle by
 * itself. */
#define NEARLY_ALL 0.75

/* The rest of a turn after the switch to it: saving and loading a GPU's registers and shared memory at its
 * memory's bandwidth takes 1 to 4 % of a turn of 2 ms. */
#define KEPT 0.97
/* The shortest window for which a part is computed. Files that were not read again since count as they were:
 * work in flight goes on, up to its expected end. */
#define WINDOW_NS 1000000ull
#define EVER_NS   (1ull << 50)
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
    double whole;    /* part of the time in bursts of others that were over before we had a turn */
    unsigned bursts; /* of jobs with nothing but such bursts */
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

/* A job that had `left` processes in flight in the mean, of which `most` at most count, and bursts for that
 * part of the time. */
static void join_all(struct contention *contention, double left, unsigned most, double bursts) {
    unsigned before = contention->most;
    if (bursts > LEAST_FRACTION) contention->whole += (bursts < 1 ? bursts : 1) / KEPT;
    if (bursts < 1) left /= 1 - bursts; /* of the time without them */
    for (unsigned at = 0; left > LEAST_FRACTION && at < most; at++, left -= 1)
        join(contention, left < 1 ? left : 1);
    contention->bursts += bursts > LEAST_FRACTION && contention->most == before;
}

/* 1 where no job joined; at least 1 / (1 + all processes that joined): between two bursts of another job we
 * have a turn. */
static double own_part(const struct contention *contention) {
    double part = contention->likelihood[0], least = KEPT / (1 + contention->most + contention->bursts);
    for (unsigned n = 1; n <= contention->most; n++)
        part += KEPT * contention->likelihood[n] / (n + 1);
    part *= 1 - contention->whole;
    return contention->whole == 0 || part > least ? part : least;
}

static pthread_mutex_t leaf = PTHREAD_MUTEX_INITIALIZER;
static struct pgpu_engagement own_engagement[PGPU_MAX_GPUS];
static struct window {
    uint64_t begun_at_ns, own_busy_ns, own_whole_ns, own_queued_ns;
    struct pgpu_flight_times begun_siblings;
    double part, counted;
} windows[PGPU_MAX_GPUS];

static bool are_urgent[PGPU_MAX_GPUS];

void pgpu_neighbours_read_often(int gpu, bool is_often) {
    __atomic_store_n(&are_urgent[gpu], is_often, __ATOMIC_RELAXED);
}

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
    uint64_t within_ns = pgpu_neighbours_by_user(gpu) ? WANTED_OF_USER_NS : WANTED_WITHIN_NS;
    return now_ns < row->wanted_ns + within_ns || is_in_flight(gpu, row, now_ns) || lacked(row, now_ns);
}

/* All of a job's time with work in flight, with what is in flight now. */
static uint64_t busy_ns(int gpu, const struct pgpu_board_gpu *row, uint64_t now_ns) {
    bool is_begun = is_in_flight(gpu, row, now_ns) && row->busy_since_ns < now_ns;
    return row->busy_ns + (is_begun ? now_ns - row->busy_since_ns : 0);
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
    pgpu_neighbour_files_refresh(now_ns, false);
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

static uint64_t less(uint64_t all_ns, uint64_t part_ns) {
    return all_ns > part_ns ? all_ns - part_ns : 0;
}

/* What is in flight by a board's word. */
static uint64_t in_flight_ns(uint64_t word, uint64_t now_ns) {
    uint64_t count = word >> PGPU_BOARD_COUNT_SHIFT;
    return less(count * (now_ns / 1000), word & PGPU_BOARD_SINCE_MASK) * 1000;
}

/* Our own part of it. */
static uint64_t own_in_flight_ns(int gpu, uint64_t now_ns) {
    const struct pgpu_usage_slot *slot = &pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot];
    bool is_in_flight = (pgpu_board_load(&slot->in_flight) >> gpu & 1) != 0;
    return is_in_flight ? less(now_ns, pgpu_board_load(&slot->in_flight_since_ns)) : 0;
}

/* The other processes of our own job: the board's figures less what this process added to them. */
static struct pgpu_flight_times times_of_siblings(int gpu, uint64_t now_ns) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    const struct window *window = &windows[gpu];
    if (own == NULL || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return (struct pgpu_flight_times){0};
    uint64_t busy_ns = less(pgpu_board_load(&own->busy_ns), window->own_busy_ns);
    uint64_t whole_ns = less(pgpu_board_load(&pgpu_board_own()->whole_ns[gpu]), window->own_whole_ns);
    uint64_t queued_ns = less(pgpu_board_load(&own->queued_ns), window->own_queued_ns) +
                         in_flight_ns(pgpu_board_load(&pgpu_board_own()->in_flight[gpu]), now_ns);
    return (struct pgpu_flight_times){less(busy_ns, whole_ns), whole_ns,
                                      less(queued_ns, own_in_flight_ns(gpu, now_ns))};
}

static struct pgpu_flight_times times_of(int gpu, const struct pgpu_other *other, uint64_t now_ns) {
    const struct pgpu_board_gpu *row = row_of(other, gpu);
    if (row == NULL) return (struct pgpu_flight_times){0};
    uint64_t whole_ns = other->board.whole_ns[row - other->board.gpu], all_ns = busy_ns(gpu, row, now_ns);
    uint64_t word = other->board.in_flight[row - other->board.gpu], flying_ns = all_ns - row->busy_ns;
    if (flying_ns != 0 && word != 0) flying_ns = in_flight_ns(word, now_ns);
    return (struct pgpu_flight_times){less(all_ns, whole_ns), whole_ns, row->queued_ns + flying_ns};
}

/* What was assumed too long is made up for by what follows, and so is what exceeds a window: it shows late.
 */
static void count_until(uint64_t *begun_ns, uint64_t total_ns, uint64_t window_ns) {
    *begun_ns = pgpu_least_ns(pgpu_most_ns(*begun_ns, total_ns), *begun_ns + window_ns);
}

static void begin_one(struct pgpu_flight_times *begun, struct pgpu_flight_times now, uint64_t window_ns) {
    begun->turns_ns = pgpu_most_ns(begun->turns_ns, now.turns_ns);
    count_until(&begun->whole_ns, now.whole_ns, window_ns);
    count_until(&begun->queued_ns, now.queued_ns, MOST_PROCESSES * window_ns);
}

/* Nothing that was before the first window counts. */
static void begin(int gpu, uint64_t now_ns, bool is_first) {
    struct window *window = &windows[gpu];
    uint64_t window_ns = is_first ? EVER_NS : now_ns - window->begun_at_ns;
    window->begun_at_ns = now_ns;
    begin_one(&window->begun_siblings, times_of_siblings(gpu, now_ns), window_ns);
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        struct pgpu_other *other = pgpu_neighbour_files_at(at);
        begin_one(&other->begun[gpu], times_of(gpu, other, now_ns), window_ns);
    }
}

static double part_of(uint64_t begun_ns, uint64_t total_ns, uint64_t window_ns) {
    return (double)less(total_ns, begun_ns) / (double)window_ns;
}

/* Every other user that wants the GPU counts as one process in flight at least. One that is in flight for
 * nearly all of the time leaves none idle: its pauses are between the end of a kernel and the next launch. */
static void count_in_full(struct contention *contention, const struct pgpu_users *users) {
    for (unsigned at = 0; at < users->count; at++) {
        const struct pgpu_demand *user = &users->other[at].demand;
        if (user->is_lacking && user->used < NEARLY_ALL) join(contention, 1 - user->used / NEARLY_ALL);
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
    struct pgpu_flight_times now = times_of_siblings(gpu, now_ns), *begun = &window->begun_siblings;
    join_all(&contention,
             by_user ? part_of(begun->queued_ns, now.queued_ns, window_ns)
                     : part_of(begun->turns_ns, now.turns_ns, window_ns),
             MOST_PROCESSES, by_user ? 0 : part_of(begun->whole_ns, now.whole_ns, window_ns));
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        struct pgpu_other *other = pgpu_neighbour_files_at(at);
        const struct pgpu_board_gpu *row = row_of(other, gpu);
        if (row == NULL) continue;
        now = times_of(gpu, other, now_ns);
        begun = &other->begun[gpu];
        double in_flight = by_user ? part_of(begun->queued_ns, now.queued_ns, window_ns)
                                   : part_of(begun->turns_ns, now.turns_ns, window_ns);
        double bursts = by_user ? 0 : part_of(begun->whole_ns, now.whole_ns, window_ns);
        join_all(&contention, in_flight, by_user ? MOST_PROCESSES : 1, bursts);
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
    pgpu_neighbour_files_refresh(now_ns, __atomic_load_n(&are_urgent[gpu], __ATOMIC_RELAXED));
    begin(gpu, now_ns, true);
    note(&histories[gpu], now_ns, 1);
    pgpu_unlock_leaf(&leaf, before);
}

double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns) {
    int before = pgpu_lock_leaf(&leaf);
    pgpu_neighbour_files_refresh(now_ns, __atomic_load_n(&are_urgent[gpu], __ATOMIC_RELAXED));
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

void pgpu_neighbours_add_published(int gpu, uint64_t busy_ns, uint64_t whole_ns) {
    int before = pgpu_lock_leaf(&leaf);
    windows[gpu].own_busy_ns += busy_ns;
    windows[gpu].own_whole_ns += whole_ns;
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
