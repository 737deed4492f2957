#include "time/budget.h"

#include "clock.h"
#include "time/board.h"
#include "time/in_flight.h"
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
 * shorter bursts keep it more exact: there only launches that may run at once are saved for, up to a period's
 * worth of the whole GPU. */
#define BURST_NS         20000000ll
#define LONGEST_BURST_NS ((uint64_t)PGPU_PERIOD_NS)
/* A launch waits for so many bursts, debt included. */
#define BURSTS_WAITED 4
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
    bool is_free; /* alone, or its user's only process: contexts take turns, so it takes no more than its part
                   */
};

/* What a process that has spent its budget waits for; 0: it has not. */
static uint64_t saving_for_ns[PGPU_MAX_GPUS];

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
    if (is_free(word, &company)) return (struct terms){.share = 1, .is_alone = true, .is_free = true};
    double share = share_of(word, own, &company);
    if ((word & PGPU_COMPUTE_SHARED) == 0)
        return (struct terms){.share = share,
                              .is_free = company.users.weight == 0 && pgpu_in_flight_is_by_us(now_ns)};
    return (struct terms){.share = share, .lost = company.is_unknown ? 0 : lost_of(gpu, share, &company)};
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

/* One burst for all threads of a process. Other processes of the job may use what this one saves. */
static uint64_t burst_of(int gpu, const struct terms *terms, const struct pgpu_backlog *backlog) {
    if (!terms->is_strict) return (uint64_t)((double)BURST_NS * terms->share);
    uint64_t saving_for = __atomic_load_n(&saving_for_ns[gpu], __ATOMIC_RELAXED);
    uint64_t burst_ns = saving_for > 0 ? saving_for : pgpu_least_ns(backlog->burst_ns, LONGEST_BURST_NS);
    bool is_in_vain = (double)backlog->waited_ns * terms->share > BURSTS_WAITED * (double)burst_ns;
    return burst_ns == 0 || is_in_vain ? 1 : burst_ns;
}

/* 0: there is enough left. A strict burst begins with all that it needs. */
static uint64_t saving_ns(int gpu, int64_t left_ns, const struct terms *terms, uint64_t burst_ns,
                          bool is_idle) {
    bool is_saving = __atomic_load_n(&saving_for_ns[gpu], __ATOMIC_RELAXED) > 0;
    is_saving |= terms->is_strict && is_idle;
    int64_t enough_ns = is_saving ? (int64_t)burst_ns : 1;
    bool is_short = left_ns < enough_ns;
    __atomic_store_n(&saving_for_ns[gpu], is_short ? burst_ns : 0, __ATOMIC_RELAXED);
    return is_short ? within((uint64_t)((double)(enough_ns - left_ns) / terms->share), terms->share) : 0;
}

/* Jobs of one user that began at once, before they knew of another user, have the same debt and would go on
 * all at once for ever. So the first debt is multiplied by a number from 0 to 2, which each job has at
 * random: from its board's inode. */
static void spread_first_debt(int gpu, int64_t left_ns) {
    uint64_t bit = 1ull << gpu;
    if (left_ns >= 0 || (pgpu_board_load(&pgpu_board_own()->owed) & bit) != 0) return;
    if ((__atomic_fetch_or(&pgpu_board_own()->owed, bit, __ATOMIC_RELAXED) & bit) != 0) return;
    double phase = (double)((pgpu_board_inode() * 0x9e3779b97f4a7c15ull) >> 32) / 4294967296.0;
    pgpu_budget_charge(gpu, (uint64_t)(int64_t)((1 - 2 * phase) * (double)left_ns));
}

/* Alone on the GPU: nothing has to be kept for jobs that arrive later. */
static uint64_t wait_for_none(int gpu) {
    uint64_t bit = 1ull << gpu;
    __atomic_store_n(&saving_for_ns[gpu], 0, __ATOMIC_RELAXED);
    if ((pgpu_board_load(&pgpu_board_own()->owed) & bit) != 0)
        __atomic_fetch_and(&pgpu_board_own()->owed, ~bit, __ATOMIC_RELAXED);
    return 0;
}

static int64_t most_ns(const struct terms *terms, uint64_t burst_ns) {
    if (terms->is_alone) return KEPT_ALONE_NS;
    return (int64_t)pgpu_most_ns((uint64_t)(2 * terms->share * (double)PGPU_PERIOD_NS), burst_ns);
}

struct pgpu_verdict pgpu_budget_check(int gpu, uint64_t word, uint64_t now_ns,
                                      const struct pgpu_backlog *backlog) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL) return (struct pgpu_verdict){0};
    struct terms terms = terms_of(gpu, word, now_ns);
    uint64_t burst_ns = burst_of(gpu, &terms, backlog);
    /* Idle time in the past is not owed; work in flight is, since later jobs will find it. */
    int64_t least_ns = terms.is_free ? -(int64_t)backlog->queued_ns : INT64_MIN;
    int64_t earned = earned_ns(own, terms.share * (1 - terms.lost), now_ns);
    int64_t left_ns = settle(own, earned, most_ns(&terms, burst_ns), least_ns) - (int64_t)backlog->own_ns;
    bool is_idle = backlog->queued_ns == 0 && backlog->own_ns == 0;
    uint64_t wait_ns =
        terms.is_free ? wait_for_none(gpu) : saving_ns(gpu, left_ns, &terms, burst_ns, is_idle);
    bool is_held_by_user = !terms.is_free && (word & PGPU_COMPUTE_SHARED) == 0;
    pgpu_neighbours_read_often(gpu, is_held_by_user);
    if (is_held_by_user) spread_first_debt(gpu, left_ns);
    if (wait_ns > 0) pgpu_board_store(&own->lacked_ns, now_ns);
    return (struct pgpu_verdict){.wait_ns = wait_ns, .is_alone = terms.is_alone, .is_free = terms.is_free};
}

int64_t pgpu_budget_left_ns(int gpu) {
    const struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    return own == NULL ? 0 : (int64_t)pgpu_board_load(&own->budget_ns);
}

void pgpu_budget_charge(int gpu, uint64_t taken_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own != NULL) __atomic_fetch_sub(&own->budget_ns, taken_ns, __ATOMIC_RELAXED);
}
