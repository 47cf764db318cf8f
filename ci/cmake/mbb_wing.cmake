# One library a wing, found by folder: X.cpp is product code, X_test.cpp and X_<label>_test.cpp are tests beside it.
# Folders named cuda, nccl and cupti hold what needs CUDA headers and belong to libmbbench_cuda (trainer/ops/cuda).

add_library(mbb_flags INTERFACE)
target_compile_features(mbb_flags INTERFACE cxx_std_20)
target_include_directories(mbb_flags INTERFACE ${CMAKE_SOURCE_DIR})
# No contraction to FMA: the CPU oracle gives the same numbers on every machine. Source paths are told from the root, so
# that messages, goldens and ccache see no checkout (ccache compiles by relative names: hence the second map).
target_compile_options(mbb_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror -Wno-missing-field-initializers -Wno-restrict
    -fno-omit-frame-pointer -ffp-contract=off
    -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/= -fmacro-prefix-map=../../=>)
if(MBB_SANITIZE)
  target_compile_options(mbb_flags INTERFACE -fsanitize=${MBB_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(mbb_flags INTERFACE -fsanitize=${MBB_SANITIZE})
endif()

set(MBB_TEST_LABELS contract golden smoke gpu)

# A regular expression: only test files whose path under the root matches are built. ThreadSanitizer's build uses it.
set(MBB_TEST_FOLDERS "" CACHE STRING "Build only tests whose path under the root matches this expression; empty: all")

# mbb_wing(name [DEPENDS libs...]): library mbb_<name> from this folder and test programs <name>_<label>.
function(mbb_wing name)
  cmake_parse_arguments(WING "" "" "DEPENDS;TEST_DEPENDS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  # Below the root: the checkout may be named so too.
  list(FILTER sources EXCLUDE REGEX "^${CMAKE_SOURCE_DIR}/(.*/)?(cuda|nccl|cupti)/")
  foreach(pattern ${WING_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(MBB_TEST_FOLDERS)
    list(FILTER tests INCLUDE REGEX "^${CMAKE_SOURCE_DIR}/(${MBB_TEST_FOLDERS})")
  endif()
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cpp$")
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "/ops/cpu/")
  # Loops whose time the gate judges begin where a cache line does: else each link moves them, and their time by 40 %.
  set(fixed_work ${sources})
  list(FILTER fixed_work INCLUDE REGEX "/(execute/cpu/reference_work|runner/canary)\\.cpp$")
  set_source_files_properties(${fixed_work} PROPERTIES COMPILE_OPTIONS -falign-functions=64)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "-falign-functions=64;$<$<CONFIG:Release>:-O3>")
  if(MBB_SANITIZE)
    set(hot_loop ${sources})
    list(FILTER hot_loop INCLUDE REGEX "/ops/cpu/product\\.cpp$")
    set_source_files_properties(${hot_loop} PROPERTIES COMPILE_OPTIONS "-O3;-fno-sanitize=all")
  endif()
  if(sources)
    add_library(mbb_${name} STATIC ${sources})
    target_link_libraries(mbb_${name} PUBLIC mbb_flags ${WING_DEPENDS})
  else()
    add_library(mbb_${name} INTERFACE)
    target_link_libraries(mbb_${name} INTERFACE mbb_flags ${WING_DEPENDS})
  endif()
  set(unit ${tests})
  foreach(label ${MBB_TEST_LABELS})
    set(labelled ${tests})
    list(FILTER labelled INCLUDE REGEX "_${label}_test\\.cpp$")
    list(FILTER unit EXCLUDE REGEX "_${label}_test\\.cpp$")
    mbb_test_program(${name}_${label} ${label} "${labelled}" mbb_${name} ${WING_TEST_DEPENDS})
  endforeach()
  mbb_test_program(${name}_unit unit "${unit}" mbb_${name} ${WING_TEST_DEPENDS})
endfunction()

function(mbb_test_program target label sources)
  if(NOT sources OR NOT BUILD_TESTING)
    return()
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  # Tests run in the source folder. Relative paths keep the command lines of two checkouts equal, so that they share a
  # compiler cache; tests are not timed, so they are compiled for speed of building.
  file(RELATIVE_PATH binary_dir ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_compile_definitions(${target} PRIVATE MBB_SOURCE_DIR="." MBB_BINARY_DIR="${binary_dir}")
  target_compile_options(${target} PRIVATE -O1)
  set(limit_s 300)
  if(MBB_SANITIZE)
    set(limit_s 1500)
  endif()
  include(GoogleTest)
  gtest_discover_tests(${target} TEST_PREFIX ${target}. WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    DISCOVERY_TIMEOUT 120 PROPERTIES LABELS ${label} TIMEOUT ${limit_s})
endfunction()
