#include "time/turns.h"

#include <stddef.h>

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns) {
    return a_ns < b_ns ? a_ns : b_ns;
}

bool sim_turns_is_busy(const struct sim_turns *turns, unsigned runner) {
    return (turns->busy[runner / 64] >> (runner % 64) & 1) != 0;
}

unsigned sim_turns_next_busy(const struct sim_turns *turns, unsigned runner) {
    for (unsigned word = runner / 64; word < SIM_RUNNERS / 64; word++) {
        uint64_t bits = turns->busy[word];
        if (word == runner / 64) bits &= ~0ull << (runner % 64);
        if (bits != 0) return word * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return SIM_RUNNERS;
}

static bool are_together(const struct sim_turns *turns, unsigned a, unsigned b) {
    return a == b || (turns->runner[a].server != 0 && turns->runner[a].server == turns->runner[b].server);
}

/* A group stands in the cycle where its first busy member does. */
static bool is_first_of_group(const struct sim_turns *turns, unsigned runner) {
    if (turns->runner[runner].server == 0) return true;
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < runner; at++)
        if (are_together(turns, at, runner)) return false;
    return true;
}

static unsigned first_of_group(const struct sim_turns *turns, unsigned runner) {
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (are_together(turns, at, runner)) return at;
    return SIM_RUNNERS;
}

unsigned sim_turns_groups(const struct sim_turns *turns) {
    unsigned count = 0;
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        count += is_first_of_group(turns, at);
    return count;
}

/* The next in the cycle behind a runner's group; SIM_RUNNERS: no other group has work. */
static unsigned next_group(const struct sim_turns *turns, unsigned runner) {
    unsigned at = runner;
    for (unsigned pass = 0; pass < 2; pass++, at = 0)
        for (; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
            if (!are_together(turns, at, runner) && is_first_of_group(turns, at)) return at;
    return SIM_RUNNERS;
}

static uint64_t window_of(const struct sim_turns *turns, unsigned runner) {
    uint64_t window_ns = turns->runner[runner].window_ns;
    return window_ns == 0 ? 1 : window_ns;
}

static void set_busy(struct sim_turns *turns, unsigned runner, bool is_busy) {
    uint64_t bit = 1ull << (runner % 64);
    turns->busy[runner / 64] = is_busy ? turns->busy[runner / 64] | bit : turns->busy[runner / 64] & ~bit;
}

static void hand_over(struct sim_turns *turns, unsigned to) {
    bool is_switch = turns->holder != 0 && !are_together(turns, (unsigned)turns->holder - 1, to);
    turns->holder = to + 1;
    turns->switched_at_ns = turns->now_ns + (is_switch ? turns->switch_ns : 0);
    turns->window_ends_ns = turns->switched_at_ns + window_of(turns, to);
}

/* One that goes on is lengthened. */
static void log_window(struct sim_turns *turns, unsigned runner, uint64_t from_ns, uint64_t to_ns) {
    struct sim_window *last = &turns->log[(turns->logged + SIM_WINDOW_LOG - 1) % SIM_WINDOW_LOG];
    if (turns->logged > 0 && last->runner == runner && last->to_ns == from_ns) {
        last->to_ns = to_ns;
        return;
    }
    turns->log[turns->logged % SIM_WINDOW_LOG] = (struct sim_window){runner, from_ns, to_ns};
    turns->logged++;
}

static void run_one(struct sim_turns *turns, unsigned runner, uint64_t to_ns) {
    struct sim_runner *own = &turns->runner[runner];
    uint64_t ran_ns = earlier(to_ns - turns->now_ns, own->left_ns);
    log_window(turns, runner, turns->now_ns, turns->now_ns + ran_ns);
    own->held_ns += ran_ns;
    own->left_ns -= ran_ns;
    if (own->left_ns > 0) return;
    own->emptied_ns = turns->now_ns + ran_ns;
    set_busy(turns, runner, false);
}

/* All of the holder's group at once, until some of it are done at the latest. */
static void run_group(struct sim_turns *turns, unsigned first, uint64_t until_ns) {
    uint64_t to_ns = until_ns;
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (are_together(turns, at, first)) to_ns = earlier(to_ns, turns->now_ns + turns->runner[at].left_ns);
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (are_together(turns, at, first)) run_one(turns, at, to_ns);
    turns->now_ns = to_ns;
}

static void lose(struct sim_turns *turns, uint64_t to_ns) {
    turns->lost_ns += to_ns - turns->now_ns;
    turns->now_ns = to_ns;
}

/* The holder has nothing to do. */
static void pass_on(struct sim_turns *turns, unsigned holder, uint64_t until_ns) {
    unsigned next = next_group(turns, holder);
    bool is_kept = turns->keeps_windows != 0 && turns->now_ns < turns->window_ends_ns;
    if (next != SIM_RUNNERS && !is_kept) {
        hand_over(turns, next);
        return;
    }
    uint64_t to_ns = next == SIM_RUNNERS ? until_ns : earlier(until_ns, turns->window_ends_ns);
    if (next == SIM_RUNNERS)
        turns->now_ns = to_ns;
    else
        lose(turns, to_ns);
}

static void step(struct sim_turns *turns, uint64_t until_ns) {
    if (turns->holder == 0) {
        unsigned first = sim_turns_next_busy(turns, 0);
        if (first == SIM_RUNNERS) turns->now_ns = until_ns;
        if (first != SIM_RUNNERS) hand_over(turns, first);
        return;
    }
    unsigned holder = (unsigned)turns->holder - 1, first = first_of_group(turns, holder);
    if (turns->now_ns < turns->switched_at_ns)
        lose(turns, earlier(until_ns, turns->switched_at_ns));
    else if (first == SIM_RUNNERS)
        pass_on(turns, holder, until_ns);
    else if (turns->now_ns < turns->window_ends_ns)
        run_group(turns, first, earlier(until_ns, turns->window_ends_ns));
    else if (next_group(turns, holder) != SIM_RUNNERS)
        hand_over(turns, next_group(turns, holder));
    else
        turns->window_ends_ns = turns->now_ns + window_of(turns, first);
}

void sim_turns_advance(struct sim_turns *turns, uint64_t now_ns) {
    while (turns->now_ns < now_ns) {
        /* Without work there is nothing to go through step by step. */
        if (sim_turns_next_busy(turns, 0) == SIM_RUNNERS)
            turns->now_ns = now_ns;
        else
            step(turns, now_ns);
    }
}

void sim_turns_need(struct sim_turns *turns, unsigned runner, uint64_t left_ns) {
    turns->runner[runner].left_ns = left_ns;
    set_busy(turns, runner, left_ns > 0);
}

/* What is left of the present window. */
static uint64_t rest_of_window(const struct sim_turns *turns) {
    return turns->window_ends_ns > turns->now_ns ? turns->window_ends_ns - turns->now_ns : 0;
}

/* Whether, from the holder on, a group has its turn before a runner has. */
static bool is_before(unsigned holder, unsigned other, unsigned runner) {
    return (other - holder) % SIM_RUNNERS < (runner - holder) % SIM_RUNNERS;
}

/* What another group has before a runner's window that is the `windows`-th from now. */
static uint64_t taken_by(const struct sim_turns *turns, unsigned other, unsigned runner, uint64_t windows) {
    unsigned holder = (unsigned)turns->holder - 1;
    uint64_t left_ns = turns->runner[other].left_ns, most_ns = windows * window_of(turns, other);
    if (are_together(turns, holder, other))
        most_ns -= window_of(turns, other) - rest_of_window(turns);
    else if (!are_together(turns, holder, runner) && !is_before(holder, other, runner))
        most_ns -= window_of(turns, other);
    return earlier(most_ns, left_ns) + (most_ns > 0 ? windows * turns->switch_ns : 0);
}

/* Exact for one window from now; beyond, others may be done earlier or later than is reckoned. */
uint64_t sim_turns_end_ns(const struct sim_turns *turns, unsigned runner, uint64_t need_ns) {
    if (turns->holder == 0 || sim_turns_groups(turns) < 2) return turns->now_ns + need_ns;
    bool is_ours = are_together(turns, (unsigned)turns->holder - 1, runner);
    uint64_t rest_ns = is_ours ? rest_of_window(turns) : 0, window_ns = window_of(turns, runner);
    if (need_ns <= rest_ns) return turns->now_ns + need_ns;
    uint64_t windows = (need_ns - rest_ns + window_ns - 1) / window_ns;
    uint64_t end_ns = turns->now_ns + need_ns + windows * turns->switch_ns;
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (!are_together(turns, at, runner) && is_first_of_group(turns, at))
            end_ns += taken_by(turns, at, runner, windows);
    return end_ns;
}
