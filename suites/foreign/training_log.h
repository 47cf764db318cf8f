// What another trainer's log says: a record a printed step, and what else the text tells of the run.
//
// A format is one file and one line of log_formats(). Readers take a log line by line, so that a running command can be
// followed, look for what they know anywhere in a line (launchers put rank prefixes, time stamps and colours before
// it), and never guess: what a line does not say stays NaN or 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::suites {

inline constexpr double kNotLogged = std::numeric_limits<double>::quiet_NaN();

// One printed step; the mean of several where a log prints every n-th.
struct LoggedStep {
  int64_t index = 0;  // as printed
  double seconds = kNotLogged;
  double clock_s = kNotLogged;  // time stamp of the line; only differences mean something
  double loss = kNotLogged;     // per token, where it is finite
  double balance_loss = kNotLogged;
  double z_loss = kNotLogged;
  double mtp_loss = kNotLogged;
  double grad_norm = kNotLogged;
  double learning_rate = kNotLogged;
  double tflops_per_gpu = kNotLogged;  // by the log's own formula
  double tokens_per_second = kNotLogged;
  double tokens_per_second_per_gpu = kNotLogged;
  int64_t tokens = 0;            // of the step; 0: not printed
  int64_t sequences = 0;         // of the step's global batch; 0: not printed beside it
  int64_t skipped = 0;           // updates skipped, or gradients not finite, among the steps of the line
  bool loss_not_finite = false;  // a loss was printed, and it is no number

  // A loss as printed; nothing where none was.
  void set_loss(std::optional<double> printed) {
    if (!printed) return;
    loss = *printed;
    loss_not_finite = !std::isfinite(*printed);
  }
};

// A setting of the other trainer that its log or configuration names: "model.num_layers" = "32".
struct ForeignSetting {
  std::string key;
  std::string value;
  int line = 0;
};

struct TrainingLog {
  std::string format;  // name of the record that read it
  std::vector<LoggedStep> steps;
  int64_t gpus = 0;                  // 0: not said
  int64_t sequence_length = 0;       // tokens; 0: not said
  int64_t global_batch_size = 0;     // sequences, the last that is said; 0: not said
  std::string device;                // GPU model; empty: not said
  int64_t peak_allocated_bytes = 0;  // of any rank that printed; 0: not said
  int64_t peak_reserved_bytes = 0;
  std::vector<ForeignSetting> settings;  // an argument dump or configuration inside the log
  int64_t lines = 0;
  int64_t repeated_steps = 0;  // printed again, by other ranks or after a restart: the first stands
  // Values under a known name that are no number, by that name: counted, never silence.
  std::map<std::string, int64_t> unreadable;
  int64_t timeless_lines = 0;  // of a step, whose time is no number above 0: left out

  // Steps that one printed line stands for; 1 when every step is printed.
  int64_t interval() const;
  // Printed lines that such an interval asks for between the first and the last, and that are not there.
  int64_t missing_lines() const;
};

class LogReader {
 public:
  virtual ~LogReader() = default;
  // One line without its end and without colours. True when it completed a step.
  virtual bool line(std::string_view text) = 0;
  // What was read so far.
  virtual const TrainingLog& so_far() const = 0;
  // After the last line.
  virtual TrainingLog finish() = 0;
};

struct LogFormat {
  const char* name;  // "megatron-lm"
  const char* doc;   // what prints it
  std::unique_ptr<LogReader> (*make)();
};

inline constexpr const char* kAutoFormat = "auto";  // the format of which most steps are found
std::span<const LogFormat> log_formats();
std::string log_format_names();  // "auto, megatron-lm, ..."

// By name, or "auto". Error with the nearest name.
Result<std::unique_ptr<LogReader>> make_log_reader(const std::string& format);

// A whole file, plain or gzip. A file without a step is kBadFile with the formats that were tried.
Result<TrainingLog> read_log(const std::filesystem::path& path, const std::string& format = kAutoFormat);
// "no step found ...": the error that read_log and a command cell share. `what` names the log.
Error no_step_error(const std::string& what, const TrainingLog& log, const std::string& format);

// Readers, one a file.
std::unique_ptr<LogReader> megatron_reader();
std::unique_ptr<LogReader> nemo_reader();
std::unique_ptr<LogReader> torchtitan_reader();
std::unique_ptr<LogReader> llmq_reader();
std::unique_ptr<LogReader> jsonl_reader();

}  // namespace mbb::suites
