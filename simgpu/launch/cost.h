/* The cost of a kernel as its author declares it in README.md's cost directive. Values depend on the launch
 * alone, not on the GPU or the clock. */
#ifndef SIM_COST_H
#define SIM_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_COST_ARGUMENTS 4
#define SIM_COST_TERMS     4
#define SIM_COST_FACTORS   4

enum sim_quantity {
    SIM_FLOP, /* of each thread, as are the reads and accesses */
    SIM_FLOP64,
    SIM_DRAM_BYTES,
    SIM_L1_READS,
    SIM_L1_BYTES, /* of each resident thread */
    SIM_L1_BLOCK_BYTES,
    SIM_L2_READS,
    SIM_L2_BYTES,
    SIM_L2_TOTAL_BYTES, /* of the launch */
    SIM_ACCESSES,
    SIM_MANAGED_BYTES, /* of the launch */
    SIM_FIXED_NS,
    SIM_WAVE_NS,
    SIM_QUANTITIES,
};

/* A factor names what is multiplied, or divided by where it is negative. */
enum sim_factor {
    SIM_NO_FACTOR,
    SIM_THREADS,
    SIM_BLOCKS,
    SIM_FIRST_ARGUMENT, /* and the next SIM_COST_ARGUMENTS - 1 */
};

struct sim_term {
    double coefficient;
    int8_t factor[SIM_COST_FACTORS];
};

struct sim_sum {
    uint8_t count;
    struct sim_term term[SIM_COST_TERMS];
};

struct sim_cost {
    uint8_t argument_count;
    uint16_t argument[SIM_COST_ARGUMENTS]; /* the parameters that it depends on, by number */
    bool names_managed;                    /* false: the kernel touches all that its context has */
    struct sim_sum sum[SIM_QUANTITIES];
};

/* What a launch gives the sums. */
struct sim_cost_input {
    double threads, blocks;
    const uint64_t *argument; /* SIM_COST_ARGUMENTS of them */
};

/* Never negative. */
double sim_cost_value(const struct sim_cost *cost, enum sim_quantity quantity,
                      const struct sim_cost_input *input);

/* The cost that a module's directives, one a line, give a kernel. */
struct sim_cost sim_cost_of(const char *directives, const char *name);

#endif
