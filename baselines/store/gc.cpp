// Rules in the order in which they hold a bundle back.
#include "baselines/store/gc.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "baselines/store/bundle.h"

namespace mbb::baselines {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDayNs = std::int64_t{24} * 3600 * 1'000'000'000;

std::int64_t size_of(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    std::error_code of_file;
    if (!at->is_regular_file(of_file)) continue;
    const auto size = at->file_size(of_file);
    if (!of_file) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

// Why a bundle stays; empty when nothing holds it.
std::string held_by(const StoredBundle& bundle, const std::vector<Pin>& pins) {
  if (bundle.being_written) return "its run goes on";
  if (!bundle.unreadable.empty()) return "cannot be read: " + bundle.unreadable;
  for (const Pin& pin : pins)
    if (std::find(pin.runs.begin(), pin.runs.end(), bundle.run.id) != pin.runs.end())
      return fmt::format("evidence of baseline {}", pin.id);
  if (bundle.run.command == "gate-bridge") return "bridge between epochs";
  // Runs of `ab` are tagged by their arm, not by a person.
  if (!bundle.run.tag.empty() && bundle.run.command != "ab") return fmt::format("tagged '{}'", bundle.run.tag);
  return "";
}

}  // namespace

Result<std::vector<StoredBundle>> list_bundles(const fs::path& runs_dir) {
  std::vector<StoredBundle> bundles;
  std::error_code error;
  const fs::path folder = runs_dir / "runs";
  if (!fs::exists(folder, error)) return bundles;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!looks_like_bundle(at->path())) continue;
    StoredBundle bundle;
    bundle.folder = at->path();
    bundle.bytes = size_of(at->path());
    bundle.run.id = at->path().filename().string();
    if (auto reader = BundleReader::open(at->path())) {
      bundle.run = reader->run();
      bundle.being_written = reader->being_written();
    } else {
      bundle.unreadable = reader.error().what;
    }
    bundles.push_back(std::move(bundle));
  }
  if (error) return fail(ErrorCode::kIo, fmt::format("{}: {}", folder.string(), error.message()));
  std::sort(bundles.begin(), bundles.end(),
            [](const StoredBundle& a, const StoredBundle& b) { return a.run.created_unix_ns > b.run.created_unix_ns; });
  return bundles;
}

std::vector<GcDecision> plan_gc(std::vector<StoredBundle> bundles, const std::vector<Pin>& pins, const GcPolicy& policy,
                                std::int64_t now_unix_ns) {
  std::sort(bundles.begin(), bundles.end(),
            [](const StoredBundle& a, const StoredBundle& b) { return a.run.created_unix_ns > b.run.created_unix_ns; });
  std::map<std::string, std::int64_t> seen;  // of each suite
  std::vector<GcDecision> plan;
  for (StoredBundle& bundle : bundles) {
    GcDecision d;
    const std::int64_t number = ++seen[bundle.run.suite];
    const std::int64_t age_days = (now_unix_ns - bundle.run.created_unix_ns) / kDayNs;
    d.reason = held_by(bundle, pins);
    if (!d.reason.empty()) {
    } else if (age_days < policy.keep_days) {
      d.reason = fmt::format("younger than {} days (gc.keep_days)", policy.keep_days);
    } else if (number <= policy.keep_runs) {
      d.reason = fmt::format("among the newest {} of its suite (gc.keep_runs)", policy.keep_runs);
    } else {
      d.removes = true;
      d.reason = fmt::format("{} days old, {} newer runs of its suite", age_days, number - 1);
    }
    d.bundle = std::move(bundle);
    plan.push_back(std::move(d));
  }
  return plan;
}

Status carry_out(const std::vector<GcDecision>& plan) {
  for (const GcDecision& d : plan) {
    if (!d.removes) continue;
    if (!looks_like_bundle(d.bundle.folder))
      return fail(ErrorCode::kNotFound, fmt::format("{} is no bundle any more", d.bundle.folder.string()),
                  "something else changes this folder: look first, then run gc again");
    if (const auto reader = BundleReader::open(d.bundle.folder); reader && reader->being_written())
      return fail(ErrorCode::kMismatch, fmt::format("the run of {} goes on again", d.bundle.folder.string()),
                  "run gc again when it has ended");
    std::error_code error;
    fs::remove_all(d.bundle.folder, error);
    if (error) return fail(ErrorCode::kIo, fmt::format("removing {}: {}", d.bundle.folder.string(), error.message()));
  }
  return {};
}

}  // namespace mbb::baselines
