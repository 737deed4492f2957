/* How a GPU's time is divided between the users with work for it, and one user's part between its jobs. Pure:
 * no clock and no shared state.
 *
 * Both by max-min fairness: those that lack time get equal parts, by weight, of what the others leave. */
#ifndef PGPU_SHIM_USERS_H
#define PGPU_SHIM_USERS_H

#include <stdbool.h>
#include <stdint.h>

/* Of further users all count as one. */
#define PGPU_USERS 32u
/* The weight of a job of ordinary priority, and the most that counts beside other users: a user lowers its
 * own part, and raises none. */
#define PGPU_USER_WEIGHT 100.0

/* What a job, or a user, demands: its weight, the part of the GPU's time that it uses, and whether it lacks
 * time. */
struct pgpu_demand {
    double weight, used;
    bool is_lacking;
};

/* All zero: our job alone. */
struct pgpu_users {
    struct pgpu_user {
        uint64_t digits;
        struct pgpu_demand demand;
    } other[PGPU_USERS];
    unsigned count;
    double own_weight;      /* the greatest of our user's other jobs */
    double used;            /* by those of our user's other jobs that lack nothing */
    double lacking, weight; /* weights of those that lack time, and of all */
};

/* A job of another user that wants the GPU, and one of our own user. */
void pgpu_users_add(struct pgpu_users *users, uint64_t digits, struct pgpu_demand demand);
void pgpu_users_add_own(struct pgpu_users *users, struct pgpu_demand demand);

/* The part for a job of ours that lacks time. `divided`: the part of the GPU's time that is divided; `least`:
 * of it, what our user has in any case. */
double pgpu_users_share(const struct pgpu_users *users, double weight, double divided, double least);

#endif
