// One reader a launcher, asked in this order: our own, mpirun, srun, torchrun, PMI.
#include "trainer/comm/process_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "profiler/base/env.h"
#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

// Rank 0 listens behind torchrun's port, which torchrun's own store holds.
constexpr int64_t kBehindTorchrun = 1;
// Ports of srun's steps, by the job's number.
constexpr int64_t kFirstPort = 20'000, kPorts = 20'000;

Result<int> number(const char* variable, int otherwise) {
  MB_ASSIGN(const auto value, env_int(variable));
  return value ? static_cast<int>(*value) : otherwise;
}

Status complete(const ProcessPlace& place) {
  if (place.rank >= 0 && place.rank < place.size && place.local_rank >= 0 && place.local_rank < place.local_size)
    return {};
  return fail(ErrorCode::kBadArgument,
              fmt::format("{} says that this is rank {} of {}, and {} of {} on its host", name(place.launcher),
                          place.rank, place.size, place.local_rank, place.local_size),
              "start all ranks by one launcher, or unset its variables");
}

Result<ProcessPlace> of_variables(Launcher launcher, const char* rank, const char* size, const char* local_rank,
                                  const char* local_size) {
  ProcessPlace place;
  place.launcher = launcher;
  MB_ASSIGN(place.rank, number(rank, -1));
  MB_ASSIGN(place.size, number(size, 1));
  MB_ASSIGN(place.local_size, number(local_size, launcher == Launcher::kMpi ? 1 : place.size));
  MB_ASSIGN(place.local_rank, number(local_rank, place.local_size > 1 || launcher != Launcher::kMpi ? place.rank : 0));
  place.one_host = place.local_size == place.size;
  return place;
}

Result<std::optional<ProcessPlace>> checked(Result<ProcessPlace> place) {
  if (!place) return tl::unexpected<Error>(place.error());
  if (place->size <= 1) return std::optional<ProcessPlace>{};
  MB_TRY(complete(*place));
  return std::optional<ProcessPlace>(std::move(*place));
}

Result<ProcessPlace> of_mpirun() {
  MB_ASSIGN(ProcessPlace place, of_variables(Launcher::kMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"));
  place.one_host = env_text("OMPI_COMM_WORLD_LOCAL_SIZE") && place.local_size == place.size;
  return place;
}

Result<ProcessPlace> of_pmi() {
  MB_ASSIGN(ProcessPlace place, of_variables(Launcher::kMpi, "PMI_RANK", "PMI_SIZE", "PMI_RANK", "PMI_SIZE"));
  place.one_host = false;
  return place;
}

Result<ProcessPlace> of_torchrun() {
  MB_ASSIGN(ProcessPlace place,
            of_variables(Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"));
  const auto host = env_text("MASTER_ADDR");
  MB_ASSIGN(const int port, number("MASTER_PORT", 0));
  if (place.size > 1 && (!host || port == 0))
    return fail(ErrorCode::kBadArgument, "WORLD_SIZE is set, and MASTER_ADDR or MASTER_PORT is not",
                "start with torchrun, which sets all of them, or unset WORLD_SIZE");
  if (host) place.rendezvous = fmt::format("{}:{}", *host, port + kBehindTorchrun);
  place.job = env_text("TORCHELASTIC_RUN_ID").value_or("torchrun");
  return place;
}

Result<ProcessPlace> of_slurm() {
  MB_ASSIGN(ProcessPlace place, of_variables(Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                                             "SLURM_STEP_NUM_TASKS"));
  MB_ASSIGN(const int nodes, number("SLURM_STEP_NUM_NODES", 1));
  // Tasks of each host as "2(x3),1": what stands first is the most that a host has.
  const std::string tasks = env_text("SLURM_STEP_TASKS_PER_NODE").value_or("");
  if (const auto most = parse_int(tasks.substr(0, tasks.find_first_of("(,"))); nodes > 1 && most)
    place.local_size = std::max(static_cast<int>(*most), place.local_rank + 1);
  place.one_host = nodes == 1;
  MB_ASSIGN(const int job, number("SLURM_JOB_ID", 0));
  MB_ASSIGN(const int step, number("SLURM_STEP_ID", 0));
  const std::string host = first_host(env_text("SLURM_STEP_NODELIST").value_or(""));
  place.rendezvous = fmt::format("{}:{}", place.one_host || host.empty() ? "127.0.0.1" : host,
                                 kFirstPort + (int64_t{job} * 7 + step) % kPorts);
  place.job = fmt::format("slurm {}.{}", job, step);
  return place;
}

Result<ProcessPlace> of_own() {
  MB_ASSIGN(ProcessPlace place,
            of_variables(Launcher::kOwn, "MBBENCH_RANK", "MBBENCH_RANKS", "MBBENCH_RANK", "MBBENCH_RANKS"));
  place.rendezvous = env_text("MBBENCH_MEET_AT").value_or("");
  place.job = "mbbench";
  if (place.size > 1 && place.rendezvous.empty())
    return fail(ErrorCode::kBadArgument, "MBBENCH_RANKS is set, and MBBENCH_MEET_AT is not",
                "`mbbench run` sets them for the ranks it starts; unset them");
  return place;
}

}  // namespace

const char* name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kMpi: return "mpirun";
    case Launcher::kTorchrun: return "torchrun";
    case Launcher::kSlurm: return "srun";
    case Launcher::kOwn: return "mbbench run";
  }
  return "unknown";
}

Result<std::optional<ProcessPlace>> process_place() {
  std::optional<ProcessPlace> place;
  if (env_text("MBBENCH_RANKS")) {
    MB_ASSIGN(place, checked(of_own()));
  } else if (env_text("OMPI_COMM_WORLD_SIZE")) {
    MB_ASSIGN(place, checked(of_mpirun()));
  } else if (env_text("SLURM_STEP_NUM_TASKS")) {
    MB_ASSIGN(place, checked(of_slurm()));
  } else if (env_text("WORLD_SIZE")) {
    MB_ASSIGN(place, checked(of_torchrun()));
  } else if (env_text("PMI_SIZE")) {
    MB_ASSIGN(place, checked(of_pmi()));
  }
  // Where the launcher's way is barred, the user says another.
  if (const auto given = env_text("MBBENCH_MEET_AT"); given && place && place->launcher != Launcher::kMpi)
    place->rendezvous = *given;
  return place;
}

std::optional<ProcessPlace> place_if_any() {
  const auto place = process_place();
  return place ? *place : std::nullopt;
}

bool terminal_is_seen(int descriptor) {
  return isatty(descriptor) != 0 && !env_text("OMPI_COMM_WORLD_SIZE");
}

std::string first_host(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',') return list.substr(0, end);
  // The first of the numbers in brackets, with what follows them.
  const size_t close = list.find(']', end);
  const size_t number_end = std::min(list.find_first_of("-,", end), close);
  const size_t tail_end = close == std::string::npos ? close : list.find(',', close);
  std::string host = list.substr(0, end) + list.substr(end + 1, number_end - end - 1);
  if (close != std::string::npos) host += list.substr(close + 1, tail_end - close - 1);
  return host;
}

}  // namespace mbb::trainer
