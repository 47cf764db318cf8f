// libmbbench_mpi.so: the table of mpi_table.h over an MPI library; the only file that includes mpi.h.
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "trainer/comm/mpi/mpi_table.h"

namespace mbb::trainer {
namespace {

struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
};

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest));

MpiRequest packed(MPI_Request request) {
  MpiRequest word = 0;
  if (request != MPI_REQUEST_NULL) std::memcpy(&word, &request, sizeof request);
  return word;
}

MPI_Request unpacked(MpiRequest word) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (word != 0) std::memcpy(&request, &word, sizeof request);
  return request;
}

bool answer(int status, const char* call, MpiText* error) {
  if (status == MPI_SUCCESS) return true;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  std::snprintf(error->text, sizeof error->text, "%s: %.*s", call, length, text);
  return false;
}

MPI_Comm comm_of(void* group) {
  return group == nullptr ? MPI_COMM_WORLD : static_cast<Group*>(group)->comm;
}

bool start(int32_t* rank, int32_t* size, MpiText* version, MpiText* error) {
  int provided = 0;
  if (!answer(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", error))
    return false;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::snprintf(version->text, sizeof version->text, "%s", text);
  return answer(MPI_Comm_rank(MPI_COMM_WORLD, rank), "MPI_Comm_rank", error) &&
         answer(MPI_Comm_size(MPI_COMM_WORLD, size), "MPI_Comm_size", error);
}

void finish() {
  MPI_Finalize();
}

bool group_open(const int32_t* members, int32_t count, int32_t tag, void** group, MpiText* error) {
  MPI_Group world = MPI_GROUP_NULL, part = MPI_GROUP_NULL;
  auto* const opened = new (std::nothrow) Group;
  if (opened == nullptr) return answer(MPI_ERR_NO_MEM, "a group", error);
  const bool good =
      answer(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group", error) &&
      answer(MPI_Group_incl(world, count, members, &part), "MPI_Group_incl", error) &&
      answer(MPI_Comm_create_group(MPI_COMM_WORLD, part, tag, &opened->comm), "MPI_Comm_create_group", error) &&
      answer(MPI_Comm_set_errhandler(opened->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", error);
  if (part != MPI_GROUP_NULL) MPI_Group_free(&part);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  if (good)
    *group = opened;
  else
    delete opened;
  return good;
}

void group_close(void* group) {
  auto* const opened = static_cast<Group*>(group);
  MPI_Comm_free(&opened->comm);
  delete opened;
}

bool send(void* group, const void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request,
          MpiText* error) {
  MPI_Request pending = MPI_REQUEST_NULL;
  const bool good = answer(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_of(group), &pending),
                           "MPI_Isend", error);
  *request = packed(pending);
  return good;
}

bool receive(void* group, void* data, uint64_t bytes, int32_t peer, int32_t tag, MpiRequest* request, MpiText* error) {
  MPI_Request pending = MPI_REQUEST_NULL;
  const bool good = answer(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_of(group), &pending),
                           "MPI_Irecv", error);
  *request = packed(pending);
  return good;
}

bool test(MpiRequest* requests, size_t count, bool* all, MpiText* error) {
  *all = true;
  for (size_t i = 0; i < count; ++i) {
    if (requests[i] == 0) continue;
    MPI_Request pending = unpacked(requests[i]);
    int done = 0;
    if (!answer(MPI_Test(&pending, &done, MPI_STATUS_IGNORE), "MPI_Test", error)) return false;
    requests[i] = done != 0 ? 0 : packed(pending);
    if (done == 0) *all = false;
  }
  return true;
}

constexpr MpiTable kTable = {kMpiTableAbi, sizeof(MpiTable), start, finish, group_open, group_close,
                             send,         receive,          test};

}  // namespace
}  // namespace mbb::trainer

extern "C" __attribute__((visibility("default"))) const mbb::trainer::MpiTable* mbbench_mpi_table() {
  return &mbb::trainer::kTable;
}
