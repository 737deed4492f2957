#pragma once
#include "order.h"

/* Starts the job of an order through the launcher, and stays its parent until it has ended and its clients
 * have read everything. */
_Noreturn void monitor(const struct order *order);
