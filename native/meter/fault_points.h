/* The places inside the protocol where a test may kill the process. Nothing of it is in the library that
 * ships. */
#ifndef PGPU_METER_POINTS_H
#define PGPU_METER_POINTS_H

#define PGPU_METER_POINTS(X)                                                                                 \
    X(OP_BEGUN)                                                                                              \
    X(OP_DELTA_WRITTEN)                                                                                      \
    X(OP_SEQ_WRITTEN)                                                                                        \
    X(OP_TOTAL_READ)                                                                                         \
    X(OP_DONE_RAISED)                                                                                        \
    X(OP_TOTAL_CHANGED)                                                                                      \
    X(OP_REFUSED)                                                                                            \
    X(OP_USED_WRITTEN)                                                                                       \
    X(OP_SETTLED)                                                                                            \
    X(RECOVER_BEGUN)                                                                                         \
    X(RECOVER_DECIDED)                                                                                       \
    X(RECOVER_SETTLED)                                                                                       \
    X(RECOVER_REFUNDED)                                                                                      \
    X(REAP_LOCKED)                                                                                           \
    X(REAP_RECOVERED)                                                                                        \
    X(REAP_UNLOCKED)                                                                                         \
    X(CLAIM_MAPPED)                                                                                          \
    X(CLAIM_ALIVE_LOCKED)                                                                                    \
    X(CLAIM_BOTH_LOCKED)                                                                                     \
    X(CLAIM_RECOVERED)                                                                                       \
    X(CLAIM_NAMED)

enum pgpu_meter_point {
#define PGPU_METER_POINT_NAME(name) PGPU_POINT_##name,
    PGPU_METER_POINTS(PGPU_METER_POINT_NAME)
#undef PGPU_METER_POINT_NAME
        PGPU_POINT_COUNT
};

#ifdef PGPU_METER_FAULTS
/* Supplied by the test client. */
void pgpu_meter_reached(enum pgpu_meter_point point);
#define PGPU_POINT(name) pgpu_meter_reached(PGPU_POINT_##name)
#else
#define PGPU_POINT(name) ((void)0)
#endif

#endif
