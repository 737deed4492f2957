# libpgpu-ml.so: the NVML shim, preload and shadow in one inode like the CUDA shim.
add_library(pgpu_nvml_shim SHARED
  nvml_devices.c nvml_memory_info.c nvml_process_lists.c nvml_resolve.c nvml_stubs.S report.c)
target_compile_definitions(pgpu_nvml_shim PRIVATE PGPU_REFUSED="NVML")
target_link_libraries(pgpu_nvml_shim PRIVATE pgpu_meter)
target_link_options(pgpu_nvml_shim PRIVATE
  -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -Wl,-z,nodelete
  -Wl,--version-script,${CMAKE_CURRENT_SOURCE_DIR}/nvml_exports.map)
set_target_properties(pgpu_nvml_shim PROPERTIES OUTPUT_NAME pgpu-ml NO_SONAME ON
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/nvml_exports.map)
install(TARGETS pgpu_nvml_shim LIBRARY DESTINATION . COMPONENT pgpu)
