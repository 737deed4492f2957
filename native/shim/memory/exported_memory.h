/* Memory that a descriptor keeps alive outside of CUDA's handles. */
#ifndef PGPU_SHIM_EXPORTS_H
#define PGPU_SHIM_EXPORTS_H

/* Let go of memory whose descriptors are all closed, here and in whichever process they were sent to. */
void pgpu_exports_settle(void);

#endif
