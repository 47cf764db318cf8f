# Writes OUTPUT, a source file that names the commit being built. Run at each build (cmake -P); the file changes only
# when its text does, so that an unchanged tree compiles nothing.
set(commit "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    execute_process(COMMAND ${GIT} status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE}
      OUTPUT_VARIABLE changes ERROR_QUIET)
    set(commit "${head}")
    if(NOT "${changes}" STREQUAL "")
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
string(CONCAT text
  "// The commit being built; written by ci/cmake/mbb_build_commit.cmake.\n"
  "#include \"profiler/host/fingerprint.h\"\n\n"
  "namespace mbb::profiler {\n\nstd::string build_commit() { return \"${commit}\"; }\n\n"
  "}  // namespace mbb::profiler\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
