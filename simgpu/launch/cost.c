#include "launch/cost.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SIM_QUANTITIES] = {
    [SIM_FLOP] = "flop",
    [SIM_FLOP64] = "flop64",
    [SIM_DRAM_BYTES] = "dram_bytes",
    [SIM_L1_READS] = "l1_reads",
    [SIM_L1_BYTES] = "l1_bytes",
    [SIM_L1_BLOCK_BYTES] = "l1_block_bytes",
    [SIM_L2_READS] = "l2_reads",
    [SIM_L2_BYTES] = "l2_bytes",
    [SIM_L2_TOTAL_BYTES] = "l2_total_bytes",
    [SIM_ACCESSES] = "accesses",
    [SIM_MANAGED_BYTES] = "managed_bytes",
    [SIM_FIXED_NS] = "fixed_ns",
    [SIM_WAVE_NS] = "wave_ns",
};

/* Room for an argument among those that the cost depends on, as a factor; SIM_NO_FACTOR: there is none. */
static int8_t argument_factor(struct sim_cost *cost, unsigned long parameter) {
    for (uint8_t i = 0; i < cost->argument_count; i++)
        if (cost->argument[i] == parameter) return (int8_t)(SIM_FIRST_ARGUMENT + i);
    if (cost->argument_count == SIM_COST_ARGUMENTS || parameter > UINT16_MAX) return SIM_NO_FACTOR;
    cost->argument[cost->argument_count] = (uint16_t)parameter;
    return (int8_t)(SIM_FIRST_ARGUMENT + cost->argument_count++);
}

static bool takes(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

static int8_t read_name(struct sim_cost *cost, const char **at) {
    if (takes(at, "threads")) return SIM_THREADS;
    if (takes(at, "blocks")) return SIM_BLOCKS;
    if (!takes(at, "arg") || !isdigit((unsigned char)**at)) return SIM_NO_FACTOR;
    return argument_factor(cost, strtoul(*at, (char **)at, 10));
}

static bool add_factor(struct sim_term *term, int8_t factor) {
    for (unsigned i = 0; i < SIM_COST_FACTORS; i++) {
        if (term->factor[i] != SIM_NO_FACTOR) continue;
        term->factor[i] = factor;
        return true;
    }
    return false;
}

/* One number or name; false: it is neither, or there is no room. */
static bool read_factor(struct sim_cost *cost, struct sim_term *term, const char **at, bool divides) {
    if (isdigit((unsigned char)**at) || **at == '.') {
        double number = strtod(*at, (char **)at);
        if (divides && number == 0) return false;
        term->coefficient = divides ? term->coefficient / number : term->coefficient * number;
        return true;
    }
    int8_t factor = read_name(cost, at);
    return factor != SIM_NO_FACTOR && add_factor(term, divides ? (int8_t)-factor : factor);
}

static bool read_term(struct sim_cost *cost, struct sim_term *term, const char **at) {
    *term = (struct sim_term){.coefficient = 1};
    for (bool divides = false;; divides = *(*at)++ == '/') {
        if (!read_factor(cost, term, at, divides)) return false;
        if (**at != '*' && **at != '/') return true;
    }
}

/* Adds to a sum; what cannot be read adds nothing. */
static void read_sum(struct sim_cost *cost, struct sim_sum *sum, const char *at) {
    for (; sum->count < SIM_COST_TERMS; at++) {
        if (!read_term(cost, &sum->term[sum->count], &at)) return;
        sum->count++;
        if (*at != '+') return;
    }
}

struct spin {
    const char *argument; /* NULL: none */
    double ns_per_unit;
};

static void take_setting(struct sim_cost *cost, struct spin *spin, const char *word) {
    const char *value = strchr(word, '=');
    size_t length = value == NULL ? 0 : (size_t)(value - word);
    if (length == 8 && strncmp(word, "argument", length) == 0) spin->argument = value + 1;
    if (length == 11 && strncmp(word, "ns_per_unit", length) == 0)
        spin->ns_per_unit = strtod(value + 1, NULL);
    for (unsigned i = 0; i < SIM_QUANTITIES; i++)
        if (length == strlen(names[i]) && strncmp(word, names[i], length) == 0)
            read_sum(cost, &cost->sum[i], value + 1);
    cost->names_managed |= length == 13 && strncmp(word, "managed_bytes", length) == 0;
}

static void add_spin(struct sim_cost *cost, const struct spin *spin) {
    struct sim_sum *fixed = &cost->sum[SIM_FIXED_NS];
    if (spin->argument == NULL || fixed->count == SIM_COST_TERMS) return;
    int8_t factor = argument_factor(cost, strtoul(spin->argument, NULL, 10));
    if (factor == SIM_NO_FACTOR) return;
    fixed->term[fixed->count++] = (struct sim_term){.coefficient = spin->ns_per_unit, .factor = {factor}};
}

static struct sim_cost read_directive(const char *settings) {
    char line[512];
    struct sim_cost cost = {0};
    struct spin spin = {0};
    size_t length = strcspn(settings, "\n");
    length = length < sizeof(line) ? length : sizeof(line) - 1;
    memcpy(line, settings, length);
    line[length] = '\0';
    for (char *rest = line, *word; (word = strsep(&rest, " \t")) != NULL;)
        take_setting(&cost, &spin, word);
    add_spin(&cost, &spin);
    return cost;
}

static struct sim_sum number(double value) {
    return (struct sim_sum){.count = 1, .term = {{.coefficient = value}}};
}

struct sim_cost sim_cost_of(const char *directives, const char *name) {
    struct sim_cost cost = {.sum = {[SIM_FIXED_NS] = number(2000), [SIM_WAVE_NS] = number(1000)}};
    for (const char *at = directives; at != NULL && *at != '\0'; at += strcspn(at, "\n")) {
        at += strspn(at, " \t\n");
        size_t length = strcspn(at, " \t\n");
        if (length == strlen(name) && memcmp(at, name, length) == 0) return read_directive(at + length);
        if (length == 1 && *at == '*') cost = read_directive(at + length);
    }
    return cost;
}

static double factor_value(int8_t factor, const struct sim_cost_input *input) {
    if (factor == SIM_THREADS) return input->threads;
    return factor == SIM_BLOCKS ? input->blocks : (double)input->argument[factor - SIM_FIRST_ARGUMENT];
}

static double term_value(const struct sim_term *term, const struct sim_cost_input *input) {
    double value = term->coefficient;
    for (unsigned i = 0; i < SIM_COST_FACTORS && term->factor[i] != SIM_NO_FACTOR; i++) {
        if (term->factor[i] > 0) {
            value *= factor_value(term->factor[i], input);
            continue;
        }
        double divisor = factor_value((int8_t)-term->factor[i], input);
        value = divisor == 0 ? 0 : value / divisor;
    }
    return value;
}

double sim_cost_value(const struct sim_cost *cost, enum sim_quantity quantity,
                      const struct sim_cost_input *input) {
    const struct sim_sum *sum = &cost->sum[quantity];
    double value = 0;
    for (unsigned i = 0; i < sum->count; i++)
        value += term_value(&sum->term[i], input);
    return value > 0 ? value : 0;
}
