/* An NVML with a table of functions of its own, as NVIDIA's has, to be put behind the shim. */
int nvmlInternalGetExportTable(const void **table, const void *table_id);

int nvmlInternalGetExportTable(const void **table, const void *table_id) {
    *table = table_id;
    return 0;
}
