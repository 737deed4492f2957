#include "time/users.h"

/* The most of a user beside others, whatever they leave. A user that wants the GPU counts as one process in
 * flight, so this is about four processes of ours in flight at a time: enough to use all of an idle GPU, and
 * few for one that needs it at times. */
#define MOST_BESIDE 0.75

static double greater(double a, double b) {
    return a > b ? a : b;
}

static double counted(double weight) {
    return weight < PGPU_USER_WEIGHT ? weight : PGPU_USER_WEIGHT;
}

static struct pgpu_user *find(struct pgpu_users *users, uint64_t digits) {
    for (unsigned at = 0; at < users->count; at++)
        if (users->other[at].digits == digits) return &users->other[at];
    if (users->count == PGPU_USERS) return &users->other[PGPU_USERS - 1];
    users->other[users->count] = (struct pgpu_user){.digits = digits};
    return &users->other[users->count++];
}

void pgpu_users_add(struct pgpu_users *users, uint64_t digits, struct pgpu_demand demand) {
    struct pgpu_demand *user = &find(users, digits)->demand;
    user->weight = greater(user->weight, counted(demand.weight));
    user->used += demand.used;
    user->is_lacking |= demand.is_lacking;
}

void pgpu_users_add_own(struct pgpu_users *users, struct pgpu_demand demand) {
    users->own_weight = greater(users->own_weight, demand.weight);
    users->weight += demand.weight;
    if (demand.is_lacking)
        users->lacking += demand.weight;
    else
        users->used += demand.used;
}

/* A part by weight of what those leave that lack nothing, up to `most`; never less than if all lacked time.
 */
static double part_of(double all, double most, double used, double own, double lacking, double weight) {
    double part = (all - used) * own / (own + lacking);
    return greater(part < most ? part : most, all * own / (own + weight));
}

static double part_of_user(const struct pgpu_users *users, double own, double divided) {
    double used = 0, lacking = 0, weight = 0;
    for (unsigned at = 0; at < users->count; at++) {
        const struct pgpu_demand *user = &users->other[at].demand;
        weight += user->weight;
        if (user->is_lacking)
            lacking += user->weight;
        else
            used += user->used;
    }
    return part_of(divided, MOST_BESIDE * divided, used, own, lacking, weight);
}

double pgpu_users_share(const struct pgpu_users *users, double weight, double divided, double least) {
    double own = counted(greater(weight, users->own_weight));
    double part = greater(part_of_user(users, own, divided), least);
    return part_of(part, part, users->used, weight, users->lacking, users->weight);
}
