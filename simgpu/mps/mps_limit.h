/* Percentages and memory limits as MPS writes them. */
#ifndef SIM_MPS_LIMIT_H
#define SIM_MPS_LIMIT_H

#include "state/state.h"

/* Bytes of a word such as `512M` or `2G`; false: it is none. */
bool mps_parse_bytes(const char *word, uint64_t *bytes);
/* Tenths of a word such as `50` or `12.5`, above 0 to 100; false: it is none. */
bool mps_parse_percentage(const char *word, uint32_t *tenths);

/* Lower `limit_bytes` by a list such as `0=1G,GPU-uuid=512M`, whose ordinals count `gpus`; false: an entry is
 * malformed or names another GPU. */
bool mps_apply_limits(const char *list, const struct sim_config *config, const unsigned *gpus, int gpu_count,
                      uint64_t limit_bytes[SIM_MAX_GPUS]);

#endif
