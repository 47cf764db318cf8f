// mbbench doctor: what was found on this machine, what is missing, why it matters and what to do. Changes nothing.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "baselines/store/store.h"
#include "profiler/base/env.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "profiler/host/cuda_table.h"
#include "profiler/host/disk.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/gpus.h"
#include "profiler/host/library.h"
#include "profiler/host/nvml.h"
#include "suites/cli/command.h"
#include "suites/cli/print.h"
#include "suites/cli/settings_of.h"
#include "suites/runner/process.h"

namespace mbb::suites {
namespace {

using profiler::LibraryFacts;
using profiler::VersionCall;

// kBroken: it is there and does not work, which no later command can make good; kMissing: something else is used.
enum class State { kOk, kNote, kMissing, kBroken };

const char* name(State state) {
  switch (state) {
    case State::kOk: return "ok";
    case State::kNote: return "note";
    case State::kMissing: return "missing";
    case State::kBroken: return "broken";
  }
  return "broken";
}

struct Finding {
  const char* section;
  std::string what;
  State state = State::kOk;
  std::string found;    // version, path, figures; or why it is not there
  std::string matters;  // what is lost without it, and what to do; empty when all is well
};

class Findings {
 public:
  void section(const char* title) { section_ = title; }
  void ok(std::string what, std::string found) { add(std::move(what), State::kOk, std::move(found), ""); }
  void add(std::string what, State state, std::string found, std::string matters) {
    all_.push_back({section_, std::move(what), state, std::move(found), std::move(matters)});
  }
  const std::vector<Finding>& all() const { return all_; }

 private:
  const char* section_ = "";
  std::vector<Finding> all_;
};

std::string reason_of(const Error& error) {
  return error.hint.empty() ? error.what : error.what + "; " + error.hint;
}

void look_at_program(Findings& f) {
  f.section("program");
  const auto host = profiler::take_fingerprint();
  const auto fact = [&](const char* key) {
    const auto found = std::find_if(host.facts.begin(), host.facts.end(), [&](const auto& h) { return h.key == key; });
    return found == host.facts.end() ? std::string("unknown") : found->value;
  };
  f.ok("mbbench", fmt::format("{}, commit {}, {}, {}", MBB_DOCTOR_VERSION, fact("build.commit"), fact("build.compiler"),
                              fact("build.checks")));
  f.ok("CUDA in this build", MBB_DOCTOR_CUDA);
  f.section("host");
  f.ok("CPU", fmt::format("{}, {} of {} CPUs usable, {} GiB, NUMA nodes {}", fact("cpu.model"), fact("cpu.usable"),
                          fact("cpu.online"), fact("memory.total_gib"), fact("numa.nodes")));
  f.ok("system",
       fmt::format("{}, kernel {}, glibc {}", fact("os.name"), fact("kernel.release"), fact("library.glibc")));
  if (const auto program = own_program(); !program)
    f.add("/proc", State::kBroken, program.error().what, program.error().hint);
  f.ok("fingerprint class", host.class_hash);
}

void look_at_store(Findings& f, const Settings& settings) {
  f.section("store");
  const std::string& folder = settings.product.runs_dir;
  const auto disk = profiler::disk_of(folder);
  if (!disk) {
    f.add("runs folder", State::kBroken, reason_of(disk.error()), "no run can be kept: set runs_dir");
    return;
  }
  const std::string text = fmt::format("{} on {} ({}), {} free", folder, disk->path, disk->file_system,
                                       format_bytes(static_cast<double>(disk->free_bytes)));
  if (!disk->writable)
    f.add("runs folder", State::kBroken, text + ", not writable",
          "runs cannot be kept there: set runs_dir to a folder you may write (runs_dir=DIR or MBBENCH_RUNS_DIR)");
  else if (disk->network)
    f.add("runs folder", State::kNote, text,
          "a network file system: the store uses a rollback journal there and several writers wait for each other");
  else if (disk->free_bytes < int64_t{1} << 30)
    f.add("runs folder", State::kNote, text,
          "less than 1 GiB is free: traces may not fit; `mbbench gc` or another disk");
  else
    f.ok("runs folder", text);
  const auto file = store_file(folder);
  if (!file_exists(file)) {
    f.ok("store", "none yet; the first run makes it");
    return;
  }
  const auto store = baselines::Store::open(file, {.read_only = true});
  if (!store) {
    f.add("store", State::kBroken, reason_of(store.error()),
          "bundles are safe: `mbbench index DIR` rebuilds the store");
    return;
  }
  const auto runs = store->list_runs();
  f.ok("store", runs ? fmt::format("{}, {} runs", file.string(), runs->size()) : reason_of(runs.error()));
}

std::string sample_text(const profiler::GpuTelemetry& t, double limit_w) {
  return fmt::format("SM {} MHz, memory {} MHz, {:.0f} of {:.0f} W, {} °C, throttled: {}", t.sm_mhz, t.memory_mhz,
                     t.power_w, limit_w, t.temperature_c, profiler::throttle_text(t.throttle_reasons));
}

// Driver and GPUs as NVML sees them, with clocks as found. True when there is a GPU.
bool look_at_driver(Findings& f) {
  f.section("NVIDIA driver");
  const auto inventory = profiler::list_gpus();
  if (inventory.gpus.empty()) {
    f.add("driver", State::kMissing, inventory.note.empty() ? "no GPU" : inventory.note,
          "no GPU can be measured here: cells run on the CPU, right in their numbers, and say so (functional/cpu)");
    return false;
  }
  f.ok("driver", fmt::format("{}, speaks CUDA {}", inventory.driver, inventory.cuda_driver));
  const auto nvml = profiler::Nvml::open();
  if (!nvml)
    f.add("NVML", State::kMissing, reason_of(nvml.error()),
          "clocks, power and throttling cannot be recorded with runs");
  for (size_t i = 0; i < inventory.gpus.size(); ++i) {
    const auto& gpu = inventory.gpus[i];
    const auto sample =
        nvml ? (*nvml)->sample(gpu.nvml_index) : Result<profiler::GpuTelemetry>(tl::unexpected(nvml.error()));
    const std::string label = fmt::format("GPU {}", i);
    const std::string text = fmt::format("{}, {}", gpu.model, format_bytes(static_cast<double>(gpu.memory_bytes)));
    if (sample)
      f.ok(label, text + "; " + sample_text(*sample, gpu.power_limit_w));
    else
      f.add(label, State::kNote, text, reason_of(sample.error()));
  }
  const std::string restricted =
      profiler::field_of(read_file("/proc/driver/nvidia/params").value_or(""), "RmProfilingAdminOnly", ':');
  if (restricted == "1")
    f.add("performance counters", State::kNote, "only for administrators (RmProfilingAdminOnly: 1)",
          "kernel times are traced all the same; hardware counters of ncu are not");
  if (const auto visible = env_text("CUDA_VISIBLE_DEVICES"))
    f.add("CUDA_VISIBLE_DEVICES", State::kNote, *visible, "CUDA numbers only these devices, in this order");
  return true;
}

std::string cuda_version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

// libmbbench_cuda.so: what it says of versions, devices and their links.
void look_at_cuda(Findings& f, bool has_gpu) {
  f.section("CUDA part");
  const auto table = profiler::cuda_table();
  if (!table) {
    // Without a GPU nobody waits for it; with one it is what stands between the user and a measurement.
    const bool there = table.error().code == ErrorCode::kMismatch;
    f.add("libmbbench_cuda.so", there ? State::kBroken : State::kMissing, reason_of(table.error()),
          has_gpu ? "the GPUs above cannot be used" : "not needed without a GPU");
    return;
  }
  profiler::CudaText error{}, cudnn_reason{};
  profiler::CudaVersions v{};
  if (const auto asked = profiler::cuda_answer((*table)->versions(&v, &cudnn_reason, &error), error); !asked) {
    f.add("libmbbench_cuda.so", has_gpu ? State::kBroken : State::kMissing, reason_of(asked.error()),
          has_gpu ? "the GPUs above cannot be used" : "not needed without a GPU");
    return;
  }
  f.ok("libmbbench_cuda.so", fmt::format("CUDA runtime {}, driver API {}, cuBLASLt {}", cuda_version(v.runtime),
                                         cuda_version(v.driver_api), v.cublaslt));
  if (v.cudnn != 0)
    f.ok("cuDNN attention", fmt::format("cuDNN {}", v.cudnn));
  else
    f.add("cuDNN attention", State::kMissing, replace_all(cudnn_reason.text, "\n", "; "),
          "attention falls back to our own flash kernel, which is slower");
  int count = 0;
  if (const auto asked = profiler::cuda_answer((*table)->device_count(&count, &error), error); !asked) {
    f.add("devices", has_gpu ? State::kBroken : State::kMissing, reason_of(asked.error()), "no cell can run on a GPU");
    return;
  }
  for (int d = 0; d < count; ++d) {
    profiler::CudaDeviceFacts facts{};
    if (const auto asked = profiler::cuda_answer((*table)->device_facts(d, &facts, &error), error); !asked) {
      f.add(fmt::format("device {}", d), State::kBroken, reason_of(asked.error()), "this device cannot be used");
      continue;
    }
    const std::string text =
        fmt::format("{}, sm_{}{}, {} SMs, {}, PCI {}", facts.name, facts.compute_major, facts.compute_minor, facts.sms,
                    format_bytes(static_cast<double>(facts.memory_bytes)), facts.pci_bus_id);
    if (facts.compute_major == 9)
      f.ok(fmt::format("device {}", d), text);
    else
      f.add(fmt::format("device {}", d), State::kBroken, text, "this build has kernels for sm_90a only (H100, H200)");
  }
  std::string without;
  for (int d = 0; d < count; ++d)
    for (int peer = 0; peer < count; ++peer) {
      bool can = false;
      if (d != peer && (*table)->peer_access(d, peer, &can, &error) && !can) without += fmt::format(" {}->{}", d, peer);
    }
  if (count < 2) return;
  if (without.empty())
    f.ok("peer access", "between all devices");
  else
    f.add("peer access", State::kNote, "missing:" + without, "copies between these go through the host");
}

struct Wanted {
  const char* what;
  std::vector<std::string> names;
  VersionCall call;
  const char* matters;
};

const std::vector<Wanted>& wanted_libraries() {
  using Shape = VersionCall::Shape;
  static const std::vector<Wanted> all = {
      {"cuBLASLt",
       {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"},
       {Shape::kReturnsSize, "cublasLtGetVersion", {10000, 100, 1}},
       "every GEMM on a GPU: install CUDA 13 or put its lib64 on LD_LIBRARY_PATH"},
      {"cuDNN",
       {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"},
       {Shape::kReturnsSize, "cudnnGetVersion", {10000, 100, 1}},
       "the fastest attention; without it our own kernel runs"},
      {"NCCL",
       {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"},
       {Shape::kWritesInt, "ncclGetVersion", {10000, 100, 1}},
       "collectives between GPUs; one GPU needs none"},
      {"CUPTI",
       {"libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13"},
       {Shape::kWritesInt, "cuptiGetVersion", {}},
       "traces of kernels and copies; without it a GPU run has step times only"},
  };
  return all;
}

void look_at_libraries(Findings& f, bool has_gpu) {
  f.section("libraries");
  for (const Wanted& w : wanted_libraries()) {
    const auto found = profiler::find_library(w.names, w.call);
    if (found)
      f.ok(w.what, fmt::format("{}{}{}", found->version, found->version.empty() ? "" : ", ", found->path));
    else
      f.add(w.what, State::kMissing, found.error().what, has_gpu ? w.matters : "not needed without a GPU");
  }
  const std::string holder = profiler::cupti_holder();
  if (holder.empty())
    f.ok("CUPTI's subscriber", "free: no tool is injected into this process");
  else
    f.add("CUPTI's subscriber", State::kNote, "held by " + holder,
          "one tool a process: our own kernel trace is off under it, NVTX ranges go to that tool");
}

// Of a program beside this one, in a tarball too: libraries that the loader does not find here. It is not run.
std::string missing_libraries(const std::string& program) {
  std::string missing;
  ProcessOptions options;
  options.arguments = {program};
  options.environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
  options.stderr_file = "/dev/null";
  options.time_limit_ms = 10'000;
  options.on_line = [&](std::string_view line) {
    if (line.find("=> not found") == std::string_view::npos) return;
    missing += (missing.empty() ? "" : ", ") + std::string(trim(line.substr(0, line.find("=>"))));
  };
  return run_process(options) ? missing : "";
}

void look_at_companions(Findings& f) {
  f.section("companions");
  const auto own = own_program();
  const std::string folder = own ? std::filesystem::path(*own).parent_path().string() : ".";
  const auto sibling = [&](const char* program, const char* matters) {
    const std::string file = folder + "/" + program;
    const bool is_there = file_exists(file);
    const std::string missing = is_there && !file.ends_with(".so") ? missing_libraries(file) : "";
    if (!is_there)
      f.add(program, State::kMissing, file + " is not there", matters);
    else if (!missing.empty())
      f.add(program, State::kMissing, fmt::format("{} does not start without {}", file, missing),
            "install the packages of these libraries, to use it");
    else
      f.ok(program, file);
  };
  sibling("mbbench-view",
          "`mbbench view` needs it: install libimgui-dev, libglfw3-dev and libopengl-dev and build again");
  if (!env_text("DISPLAY") && !env_text("WAYLAND_DISPLAY"))
    f.add("display", State::kMissing, "neither DISPLAY nor WAYLAND_DISPLAY is set",
          "`mbbench view` opens no window here; `mbbench view --screenshot F` under xvfb-run works");
  else
    f.ok("display", env_text("DISPLAY").value_or(env_text("WAYLAND_DISPLAY").value_or("")));
  sibling("mbbench-micro", "`mbbench micro` needs it: install libbenchmark-dev and CUDA and build again");
  sibling("libmbbench_mpi.so", "ranks as processes under mpirun need it: install libopenmpi-dev and build again");
  const std::string mpirun = profiler::find_program("mpirun");
  if (mpirun.empty())
    f.add("mpirun", State::kMissing, "not on PATH",
          "ranks as processes: install openmpi-bin; ranks as threads need none");
  else
    f.ok("mpirun", mpirun);
}

std::string verdict(const std::vector<Finding>& all, bool has_gpu) {
  const auto broken = std::count_if(all.begin(), all.end(), [](const Finding& f) { return f.state == State::kBroken; });
  if (broken > 0) return fmt::format("{} finding{} broken: see above", broken, broken == 1 ? " is" : "s are");
  return has_gpu ? "cells that fit these GPUs are measured here"
                 : "cells run on the CPU here (functional/cpu): right numerics, and no performance claim";
}

void print_text(const std::vector<Finding>& all, const std::string& verdict_line) {
  const char* section = "";
  size_t width = 0;
  for (const Finding& f : all) width = std::max(width, f.what.size());
  for (const Finding& f : all) {
    if (section != f.section) fmt::print("{}{}\n", *section != '\0' ? "\n" : "", f.section);
    section = f.section;
    fmt::print("  {:<8} {:<{}}  {}\n", name(f.state), f.what, width, printable(f.found, 400));
    if (!f.matters.empty()) fmt::print("  {:<8} {:<{}}  -> {}\n", "", "", width, f.matters);
  }
  fmt::print("\n{}\n", verdict_line);
}

void print_json(const std::vector<Finding>& all, const std::string& verdict_line) {
  fmt::print("{{\"verdict\": {}, \"findings\": [", json_quote(verdict_line));
  for (size_t i = 0; i < all.size(); ++i)
    fmt::print("{}\n  {{\"section\": {}, \"what\": {}, \"state\": {}, \"found\": {}, \"matters\": {}}}",
               i == 0 ? "" : ",", json_quote(all[i].section), json_quote(all[i].what), json_quote(name(all[i].state)),
               json_quote(all[i].found), json_quote(all[i].matters));
  fmt::print("\n]}}\n");
}

Result<int> doctor(const Parsed& parsed) {
  MB_ASSIGN(const Settings settings, settings_of(parsed));
  Findings f;
  look_at_program(f);
  look_at_store(f, settings);
  const bool has_gpu = look_at_driver(f);
  look_at_cuda(f, has_gpu);
  look_at_libraries(f, has_gpu);
  look_at_companions(f);
  const std::string line = verdict(f.all(), has_gpu);
  parsed.flag("--json") ? print_json(f.all(), line) : print_text(f.all(), line);
  const bool broken =
      std::any_of(f.all().begin(), f.all().end(), [](const Finding& x) { return x.state == State::kBroken; });
  return broken ? kExitBroken : 0;
}

}  // namespace

Command doctor_command() {
  Command c{"doctor", "say what this machine has, what is missing and why it matters", {}, {kJsonOption}, true, doctor};
  c.settings_alone = true;
  return c;
}

}  // namespace mbb::suites
