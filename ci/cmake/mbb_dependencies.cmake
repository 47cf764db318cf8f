# Foreign libraries, all from Debian's packages. Linked statically where a static build exists, so that the program
# starts on machines that lack these packages.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)

function(mbb_static_or_shared target header library)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  find_library(${target}_LIBRARY NAMES lib${library}.a ${library} REQUIRED)
  add_library(mbb::${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(mbb::${target} SYSTEM INTERFACE ${${target}_INCLUDE})
  target_link_libraries(mbb::${target} INTERFACE ${${target}_LIBRARY})
endfunction()

mbb_static_or_shared(sqlite sqlite3.h sqlite3)
target_link_libraries(mbb::sqlite INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
mbb_static_or_shared(xxhash xxhash.h xxhash)
mbb_static_or_shared(zstd zstd.h zstd)

# Header-only ones.
foreach(pair fmt:fmt/core.h expected:tl/expected.hpp cli11:CLI/CLI.hpp toml:toml++/toml.h json:nlohmann/json.hpp
             rapidjson:rapidjson/reader.h)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 header)
  find_path(${name}_INCLUDE ${header})
  if(NOT ${name}_INCLUDE)
    message(FATAL_ERROR "${header} not found: run ci/setup, which installs every package this build needs")
  endif()
endforeach()

find_package(GTest REQUIRED)
