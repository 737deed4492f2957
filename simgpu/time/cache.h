/* How often a cache still holds what is read again. Pure.
 *
 * A line that is brought in takes the place of any other, with the same chance for each. What is read again
 * after all the rest of its set then hits with probability exp(-lines brought in meanwhile / lines of the
 * cache).
 * Source: Berg and Hagersten, StatCache: a probabilistic approach to efficient and accurate data locality
 * analysis (ISPASS 2004). */
#ifndef SIM_CACHE_H
#define SIM_CACHE_H

#define SIM_LINE_BYTES   128.0
#define SIM_SECTOR_BYTES 32.0

/* Lines that are all touched again and again, in any unit of time. */
struct sim_cache_class {
    double set_lines, touches;
    double hits; /* out: 0..1 */
};

/* Fill in `hits`; `stream_lines` are brought in in that time whatever the cache holds. */
void sim_cache_share(double cache_lines, double stream_lines, struct sim_cache_class *class, unsigned count);

#endif
