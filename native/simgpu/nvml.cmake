# libnvidia-ml.so.1 of the simulated driver, over the same state as its libcuda.so.1.
add_library(simgpu_nvml SHARED
  activity.c config.c directory.c limits.c nvml_features.c nvml_gpm.c nvml_handles.c nvml_identity.c nvml_init.c nvml_limits.c
  nvml_memory.c nvml_mig.c nvml_pci.c
  nvml_power.c nvml_processes.c nvml_system.c nvml_topology.c nvml_unsupported.c nvml_utilisation.c)
target_include_directories(simgpu_nvml PRIVATE ${PROJECT_SOURCE_DIR}/native/include ${PROJECT_SOURCE_DIR}/native/api)
target_compile_definitions(simgpu_nvml PRIVATE _GNU_SOURCE)
target_link_libraries(simgpu_nvml PRIVATE pgpu_meter)
# -Bsymbolic: its own calls never bind to a preloaded shim.
target_link_options(simgpu_nvml PRIVATE -Wl,-Bsymbolic -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/nvml.map)
set_target_properties(simgpu_nvml PROPERTIES OUTPUT_NAME nvidia-ml SUFFIX .so.1 NO_SONAME ON
                                             LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/nvml.map
                                             LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/driver)
target_link_options(simgpu_nvml PRIVATE -Wl,-soname,libnvidia-ml.so.1)
install(TARGETS simgpu_nvml LIBRARY DESTINATION simgpu COMPONENT pgpu)
