# Builds with ziglang (PyPI) for glibc 2.17, so that one wheel loads in every image since 2014, independent of the build machine.
#
#   -DPGPU_TARGET=x86_64|aarch64   the machine to build for (default: this one)
#
# The compiler is one program with the tool's name as its first word, so there are no wrapper scripts.
set(PGPU_TARGET "${CMAKE_HOST_SYSTEM_PROCESSOR}" CACHE STRING "Machine to build for: x86_64 or aarch64")
set(PGPU_GLIBC "2.17" CACHE STRING "Oldest glibc that must load what is built")
if(NOT PGPU_TARGET) # before project() the host is unknown
  execute_process(COMMAND uname -m OUTPUT_VARIABLE PGPU_TARGET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()

if(NOT PGPU_ZIG)
  foreach(python "${Python_EXECUTABLE}" "${Python3_EXECUTABLE}" python3)
    if(python AND NOT PGPU_ZIG)
      execute_process(
        COMMAND "${python}" -c "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      set(PGPU_ZIG "${found}" CACHE FILEPATH "The zig program of the ziglang package" FORCE)
    endif()
  endforeach()
endif()
if(NOT PGPU_ZIG)
  message(FATAL_ERROR "ziglang is not installed: pip install ziglang")
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PGPU_TARGET PGPU_GLIBC PGPU_ZIG)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "${PGPU_TARGET}")
set(target "${PGPU_TARGET}-linux-gnu.${PGPU_GLIBC}")
foreach(language C ASM)
  set(CMAKE_${language}_COMPILER "${PGPU_ZIG}")
  set(CMAKE_${language}_COMPILER_ARG1 "cc -target ${target}")
  set(CMAKE_${language}_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "<CMAKE_AR> ranlib <TARGET>")
endforeach()
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-s")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-s")
set(CMAKE_AR "${PGPU_ZIG}" CACHE FILEPATH "" FORCE)
set(CMAKE_RANLIB "${PGPU_ZIG}" CACHE FILEPATH "" FORCE)
