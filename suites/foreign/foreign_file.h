// Any file of another tool that `mbbench import` takes: told apart by what it holds, and read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "profiler/memory/snapshot.h"
#include "profiler/trace/trace.h"
#include "suites/foreign/training_log.h"

namespace mbb::suites {

enum class ForeignKind { kLog, kConfig, kKineto, kNsys, kSnapshot };
const char* name(ForeignKind kind);  // "training log", "configuration", ...

struct ForeignFile {
  std::filesystem::path path;
  ForeignKind kind = ForeignKind::kLog;
  TrainingLog log;                                   // kLog, with the settings it prints
  std::vector<ForeignSetting> settings;              // kConfig
  std::optional<profiler::Trace> trace;              // kKineto, kNsys
  std::optional<profiler::MemorySnapshot> snapshot;  // kSnapshot
  std::string device;                                // that a trace names, where it names one
  int64_t left_out = 0;                              // malformed or unlinked records of a trace
  // Of a Kineto trace, which is one rank's: which, of how many (-1: it does not say), and where the trace's zero lies
  // on the file's clock.
  int32_t rank = -1, world_size = -1;
  int64_t zero_ns = 0;
  std::string note;  // of a Kineto trace that we exported: the class of its times; else empty
};

// Error for a file that is none of these, with what was tried.
Result<ForeignFile> read_foreign(const std::filesystem::path& path, const std::string& log_format = kAutoFormat);

// The regular files of a folder (not of folders in it), by name; or the one file.
Result<std::vector<std::filesystem::path>> foreign_files(const std::filesystem::path& path);

}  // namespace mbb::suites
