// The one table that libmbbench_mpi.so exports: the few MPI calls that messages between processes need. Nothing here
// includes mpi.h, and the program links no MPI: ranks that a launcher started open the library from beside the program.
//
// All calls come from one thread. A failing call returns false and writes its reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "profiler/base/error.h"

namespace mbb::trainer {

inline constexpr uint32_t kMpiTableAbi = 1;

struct MpiText {
  char text[1024];
};

// One pending send or receive; null when it is done.
using MpiRequest = uint64_t;

struct MpiTable {
  uint32_t abi;
  uint32_t bytes;
  bool (*start)(int32_t* rank, int32_t* size, MpiText* version, MpiText* error);
  // Every rank calls it, with no message on its way.
  void (*finish)();
  // A group of world ranks, in this order; only its members call it, all with one tag.
  bool (*group_open)(const int32_t* members, int32_t count, int32_t tag, void** group, MpiText* error);
  void (*group_close)(void* group);
  // Between members of a group (null: the world), in the order of the calls for each peer and tag. `bytes` up to 2^30.
  bool (*send)(void* group, const void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request,
               MpiText* error);
  bool (*receive)(void* group, void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request,
                  MpiText* error);
  // Makes progress; `all` says whether every request is null now.
  bool (*test)(MpiRequest* requests, size_t count, bool* all, MpiText* error);
};

// Opens libmbbench_mpi.so once for the process. The error says where it was looked for, or what the loader said.
Result<const MpiTable*> mpi_table();

Status mpi_answer(bool good, const MpiText& error);

}  // namespace mbb::trainer
