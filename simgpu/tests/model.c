/* The pure parts of the simulated driver's model of time: one question on the command line, numbers on
 * standard output. tests/native/test_simgpu_model.py has the expected answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/carveout.h"
#include "time/contention.h"
#include "launch/cost.h"
#include "time/turns.h"

static struct sim_config config;

static double number(const char *text) {
    return strtod(text, NULL);
}

static uint64_t whole(const char *text) {
    return strtoull(text, NULL, 10);
}

/* cache_lines stream_lines {set touches}… */
static void hits(int count, char **word) {
    struct sim_cache_class class[8];
    int classes = (count - 2) / 2;
    for (int i = 0; i < classes; i++)
        class[i] = (struct sim_cache_class){number(word[2 + 2 * i]), number(word[3 + 2 * i]), 0};
    sim_cache_share(number(word[0]), number(word[1]), class, (unsigned)classes);
    for (int i = 0; i < classes; i++)
        printf("%.6f\n", class[i].hits);
}

/* keeps_windows switch until {server window need begin}…; for each: expected end, end, held; then what was
 * lost
 */
static void turns(int count, char **word) {
    static struct sim_turns turns;
    unsigned runners = (unsigned)(count - 3) / 4;
    uint64_t expected_ns[16] = {0};
    turns.keeps_windows = whole(word[0]);
    turns.switch_ns = whole(word[1]);
    for (unsigned i = 0; i < runners && i < 16; i++) {
        char **of = &word[3 + 4 * i];
        turns.runner[i].server = whole(of[0]);
        turns.runner[i].window_ns = whole(of[1]);
        sim_turns_advance(&turns, whole(of[3]));
        sim_turns_need(&turns, i, whole(of[2]));
    }
    for (unsigned i = 0; i < runners && i < 16; i++)
        expected_ns[i] = sim_turns_end_ns(&turns, i, turns.runner[i].left_ns);
    sim_turns_advance(&turns, whole(word[2]));
    for (unsigned i = 0; i < runners && i < 16; i++)
        printf("%llu\n%llu\n%llu\n", (unsigned long long)expected_ns[i],
               (unsigned long long)turns.runner[i].emptied_ns, (unsigned long long)turns.runner[i].held_ns);
    printf("%llu\n", (unsigned long long)turns.lost_ns);
}

/* block_bytes wanted_blocks percent */
static void carveout(char **word) {
    struct sim_carveout wish = {whole(word[0]), whole(word[1]), atoi(word[2])};
    uint64_t shared_bytes = sim_carveout_shared_bytes(&config.gpu[0], &wish);
    printf("%llu\n%llu\n", (unsigned long long)shared_bytes,
           (unsigned long long)sim_carveout_l1_bytes(&config.gpu[0], shared_bytes));
}

/* directives kernel threads blocks {argument}… */
static void cost(int count, char **word) {
    uint64_t argument[SIM_COST_ARGUMENTS] = {0};
    for (int i = 4; i < count && i < 4 + SIM_COST_ARGUMENTS; i++)
        argument[i - 4] = whole(word[i]);
    struct sim_cost cost = sim_cost_of(word[0], word[1]);
    struct sim_cost_input input = {number(word[2]), number(word[3]), argument};
    for (unsigned i = 0; i < SIM_QUANTITIES; i++)
        printf("%.6g\n", sim_cost_value(&cost, i, &input));
}

static struct sim_demand demand_of(char *text) {
    double numbers[SIM_DEMAND_NUMBERS] = {0};
    unsigned count = 0;
    for (char *rest = text, *part; count < SIM_DEMAND_NUMBERS && (part = strsep(&rest, ",")) != NULL; count++)
        numbers[count] = number(part);
    struct sim_demand demand;
    memcpy(&demand, numbers, sizeof(demand));
    return demand;
}

/* {demand, its numbers with commas}… */
static void together(int count, char **word) {
    struct sim_demand demand[SIM_MOST_TOGETHER] = {{0}};
    double rate[SIM_MOST_TOGETHER];
    for (int i = 0; i < count; i++)
        demand[i] = demand_of(word[i]);
    sim_contention_rates(&config.gpu[0], demand, (unsigned)count, rate);
    for (int i = 0; i < count; i++)
        printf("%.6f\n", rate[i]);
}

int main(int count, char **word) {
    char problem[200] = "usage: model DIRECTORY hits|turns|carveout|cost|together NUMBER…";
    if (count < 3 || !sim_config_read(word[1], &config, problem, sizeof(problem))) {
        fprintf(stderr, "%s\n", problem);
        return 2;
    }
    const char *question = word[2];
    count -= 3, word += 3;
    if (strcmp(question, "hits") == 0 && count >= 4) hits(count, word);
    if (strcmp(question, "turns") == 0 && count >= 7) turns(count, word);
    if (strcmp(question, "carveout") == 0 && count == 3) carveout(word);
    if (strcmp(question, "cost") == 0 && count >= 4) cost(count, word);
    if (strcmp(question, "together") == 0 && count > 0 && count <= SIM_MOST_TOGETHER) together(count, word);
    return 0;
}
