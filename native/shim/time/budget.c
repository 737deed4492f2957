#include "time/budget.h"

#include "time/board.h"
#include "time/neighbours.h"

#define SHORTEST_NS 50000ull
#define LONGEST_NS  5000000ull
/* Small parts of the time wait long: many jobs of a user that poll often would take processors. */
#define SMALL_SHARE      0.05
#define LONGEST_SMALL_NS 20000000ull
/* A job that ran alone gets no extra credit when another one starts. */
#define KEPT_ALONE_NS 5000000ll
/* The least share, so that a job without a guarantee still progresses; of one among many jobs of a user. */
#define LEAST_SHARE         0.01
#define LEAST_SHARE_OF_USER 0.0005
/* Longest gap that counts as elapsed time: clocks stop while a machine sleeps. */
#define LONGEST_GAP_NS 1000000000ull

/* In fair mode a job without budget waits until it has this much again: contexts that change with
 * every kernel cost all jobs the switches between them. A strict share includes time for switches, and
 * shorter bursts keep it more exact. */
#define BURST_NS 20000000ll
/* Switches between contexts use time that no job is charged. A job that cannot use its full share builds up
 * budget; then all jobs earn less, in proportion, but by no more than this part, whatever a board claims. */
#define MOST_LOST    0.06
#define LEAST_BEHIND 0.5
#define MOST_BEHIND  1.9

struct terms {
    double share; /* that it may use now */
    double lost;  /* part of the GPU's time that no job earns */
    bool is_strict;
    bool is_alone; /* no other job wants the GPU, so nothing has to be paid back */
};

/* Whether a process has spent its budget and waits for its next burst. */
static bool is_saving[PGPU_MAX_GPUS];

static double guaranteed(uint64_t word) {
    return (double)(word & PGPU_COMPUTE_SHARE_MASK) / 1e6;
}

static double weight_of(uint64_t word) {
    uint64_t weight = (word >> PGPU_COMPUTE_WEIGHT_SHIFT) & PGPU_COMPUTE_WEIGHT_MASK;
    return weight == 0 ? 1 : (double)weight;
}

/* What the jobs of our user have together while other users have work; 0: time is not divided between users.
 */
static double least_of_user(uint64_t word) {
    return (double)((word >> PGPU_COMPUTE_USER_SHIFT) & PGPU_COMPUTE_USER_MASK) / 1e3;
}

/* How far the job that lags most is behind, in periods. A job that leaves the GPU idle between its launches
 * is not behind, however much budget it has. */
static double lost_of(int gpu, double share, const struct pgpu_company *company) {
    double behind =
        company->is_lacking ? (double)pgpu_budget_left_ns(gpu) / (share * (double)PGPU_PERIOD_NS) : 0;
    if (behind < company->behind) behind = company->behind;
    if (behind < LEAST_BEHIND) return 0;
    return behind > MOST_BEHIND ? MOST_LOST
                                : MOST_LOST * (behind - LEAST_BEHIND) / (MOST_BEHIND - LEAST_BEHIND);
}

/* Guaranteed shares first. The time that is not guaranteed is divided by weight among the jobs that want the
 * GPU; between users first, where several want it. Of a board that cannot be read nothing is borrowed. */
static double share_of(uint64_t word, double own, const struct pgpu_company *company) {
    double idle = company->is_unknown || own + company->share > 1 ? 0 : 1 - own - company->share;
    double weight = weight_of(word), least = least_of_user(word);
    if (least > 0 && (company->is_unknown || company->users.count > 0)) {
        double share = own + pgpu_users_share(&company->users, weight, idle, least);
        return share < LEAST_SHARE_OF_USER ? LEAST_SHARE_OF_USER : share;
    }
    double share = own + idle * weight / (weight + company->weight);
    return share < LEAST_SHARE ? LEAST_SHARE : share;
}

/* Without a share on the GPU, jobs of one user wait for nothing, nor any job whose board cannot be read: the
 * driver's own time slices divide the time. */
static bool is_free(uint64_t word, const struct pgpu_company *company) {
    if ((word & PGPU_COMPUTE_SHARED) != 0) return !company->is_unknown && company->count == 0;
    return company->is_unknown || company->users.count == 0;
}

static struct terms terms_of(int gpu, uint64_t word, uint64_t now_ns) {
    double own = guaranteed(word);
    if ((word & PGPU_COMPUTE_STRICT) != 0 && own > 0) return (struct terms){.share = own, .is_strict = true};
    struct pgpu_company company = pgpu_neighbours_find_company(gpu, now_ns);
    if (is_free(word, &company)) return (struct terms){.share = 1, .is_alone = true};
    double share = share_of(word, own, &company);
    bool may_lag = (word & PGPU_COMPUTE_SHARED) != 0 && !company.is_unknown;
    return (struct terms){.share = share, .lost = may_lag ? lost_of(gpu, share, &company) : 0};
}

/* Of threads and processes that arrive at once, one adds. A process that dies between the two steps costs its
 * job one refill. */
static int64_t earned_ns(struct pgpu_board_gpu *own, double share, uint64_t now_ns) {
    uint64_t then_ns = pgpu_board_load(&own->refilled_ns);
    if (then_ns >= now_ns && then_ns - now_ns < LONGEST_GAP_NS) return 0;
    if (!__atomic_compare_exchange_n(&own->refilled_ns, &then_ns, now_ns, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return 0;
    uint64_t gap_ns = then_ns == 0 || then_ns > now_ns ? (uint64_t)PGPU_PERIOD_NS : now_ns - then_ns;
    if (gap_ns > LONGEST_GAP_NS) gap_ns = LONGEST_GAP_NS;
    return (int64_t)((double)gap_ns * share);
}

static int64_t settle(struct pgpu_board_gpu *own, int64_t earned, int64_t most_ns, int64_t least_ns) {
    uint64_t was = pgpu_board_load(&own->budget_ns);
    for (;;) {
        int64_t now_ns = (int64_t)was + earned;
        if (now_ns > most_ns) now_ns = most_ns;
        if (now_ns < least_ns) now_ns = least_ns;
        if (now_ns == (int64_t)was) return now_ns;
        if (__atomic_compare_exchange_n(&own->budget_ns, &was, (uint64_t)now_ns, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return now_ns;
    }
}

static uint64_t within(uint64_t wait_ns, double share) {
    uint64_t longest_ns = share < SMALL_SHARE ? LONGEST_SMALL_NS : LONGEST_NS;
    if (wait_ns < SHORTEST_NS) return SHORTEST_NS;
    return wait_ns < longest_ns ? wait_ns : longest_ns;
}

/* 0: there is enough left. */
static uint64_t saving_ns(int gpu, int64_t left_ns, const struct terms *terms) {
    bool is_burst = __atomic_load_n(&is_saving[gpu], __ATOMIC_RELAXED) && !terms->is_strict;
    int64_t enough_ns = is_burst ? (int64_t)((double)BURST_NS * terms->share) : 1;
    bool is_short = left_ns < enough_ns;
    __atomic_store_n(&is_saving[gpu], is_short, __ATOMIC_RELAXED);
    return is_short ? within((uint64_t)((double)(enough_ns - left_ns) / terms->share), terms->share) : 0;
}

/* Alone on the GPU: nothing has to be kept for jobs that arrive later. */
static uint64_t wait_for_none(int gpu) {
    __atomic_store_n(&is_saving[gpu], false, __ATOMIC_RELAXED);
    return 0;
}

struct pgpu_verdict pgpu_budget_check(int gpu, uint64_t word, uint64_t now_ns, uint64_t own_ns,
                                      uint64_t queued_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL) return (struct pgpu_verdict){0};
    struct terms terms = terms_of(gpu, word, now_ns);
    int64_t most_ns = terms.is_alone ? KEPT_ALONE_NS : (int64_t)(2 * terms.share * (double)PGPU_PERIOD_NS);
    /* Idle time in the past is not owed; work in flight is, since later jobs will find it. */
    int64_t least_ns = terms.is_alone ? -(int64_t)queued_ns : INT64_MIN;
    int64_t earned = earned_ns(own, terms.share * (1 - terms.lost), now_ns);
    int64_t left_ns = settle(own, earned, most_ns, least_ns) - (int64_t)own_ns;
    uint64_t wait_ns = terms.is_alone ? wait_for_none(gpu) : saving_ns(gpu, left_ns, &terms);
    if (wait_ns > 0) pgpu_board_store(&own->lacked_ns, now_ns);
    return (struct pgpu_verdict){.wait_ns = wait_ns, .is_alone = terms.is_alone};
}

int64_t pgpu_budget_left_ns(int gpu) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    return own == NULL ? 0 : (int64_t)pgpu_board_load(&own->budget_ns);
}

void pgpu_budget_charge(int gpu, uint64_t taken_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own != NULL) __atomic_fetch_sub(&own->budget_ns, taken_ns, __ATOMIC_RELAXED);
}
