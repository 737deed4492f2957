/* What counting.c is linked with, in place of the simulated driver. */
int pgpu_test_nothing(void);
int pgpu_test_nothing(void) {
    return 0;
}
