/* Memory that a descriptor keeps alive outside of CUDA's handles. */
#ifndef PGPU_SHIM_EXPORTED_MEMORY_H
#define PGPU_SHIM_EXPORTED_MEMORY_H

/* Let go of memory whose descriptors are all closed, here and in whichever process they were sent to. */
void pgpu_exported_memory_settle(void);

#endif
