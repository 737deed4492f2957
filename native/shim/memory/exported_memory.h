/* Memory that a descriptor keeps alive outside of CUDA's handles. */
#ifndef PGPU_SHIM_EXPORTED_MEMORY_H
#define PGPU_SHIM_EXPORTED_MEMORY_H

/* Release memory whose exported descriptors are closed in all processes. */
void pgpu_exported_memory_settle(void);

#endif
