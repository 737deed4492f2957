/* Memory that is bound to multicast objects. */
#ifndef PGPU_SHIM_MULTICAST_H
#define PGPU_SHIM_MULTICAST_H

#include <stdint.h>

/* A multicast object is gone: let go of what is bound to it. */
void pgpu_multicast_unbind_all(uint64_t object);

#endif
