// As bytes: a line "routing SEQUENCE TOP_K", a line "SAMPLES ROUTER" a router, an empty line; then each router's
// samples, index and choices, as little-endian i64 and i32.
#include "trainer/run/routing_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "profiler/base/check.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 32;

tl::unexpected<Error> bad_table() {
  return fail(ErrorCode::kBadFile, "no record of routers' choices",
              "give the routing.bin of a bundle that ran with parallel.moe_router_replay = record");
}

}  // namespace

RoutingTable::Choices& RoutingTable::choices(std::string_view router, int64_t sample) {
  auto of = samples_.find(router);
  if (of == samples_.end()) of = samples_.try_emplace(std::string(router)).first;
  Choices& found = of->second[sample];
  if (found.empty()) found.assign(static_cast<size_t>(sequence_ * top_k_), -1);
  return found;
}

void RoutingTable::set(std::string_view router, int64_t sample, int64_t place, std::span<const int32_t> experts) {
  MB_CHECK(static_cast<int64_t>(experts.size()) == top_k_ && place >= 0 && place < sequence_,
           "a token's choice outside its sample");
  std::copy(experts.begin(), experts.end(), choices(router, sample).begin() + place * top_k_);
}

Status RoutingTable::get(std::string_view router, int64_t sample, int64_t place, std::span<int32_t> experts) const {
  const auto of = samples_.find(router);
  const bool known = of != samples_.end() && of->second.contains(sample);
  const auto wanted = static_cast<int64_t>(experts.size());
  if (known && wanted == top_k_ && place >= 0 && place < sequence_) {
    const auto first = of->second.at(sample).begin() + place * top_k_;
    std::copy_n(first, top_k_, experts.begin());
    if (experts[0] >= 0) return {};
  }
  return fail(ErrorCode::kMismatch,
              fmt::format("the recorded choices have none of {} experts for router {}, sample {}, token {}", wanted,
                          router, sample, place),
              "replay what a run of the same model, data, batch and steps recorded");
}

Status RoutingTable::check_experts(int64_t experts) const {
  for (const auto& [router, samples] : samples_)
    for (const auto& [sample, values] : samples)
      for (int64_t place = 0; place < sequence_; ++place) {
        const auto first = values.begin() + place * top_k_, end = first + top_k_;
        if (std::all_of(first, end, [](int32_t expert) { return expert == -1; })) continue;  // not set
        for (auto at = first; at != end; ++at)
          if (*at < 0 || *at >= experts || std::find(first, at, *at) != at)
            return fail(ErrorCode::kMismatch,
                        fmt::format("the recorded choices send token {} of sample {} to expert {} of {} at router {}{}",
                                    place, sample, *at, experts, router, *at >= 0 && *at < experts ? " twice" : ""),
                        "replay what a run of the same model recorded");
      }
  return {};
}

void RoutingTable::add(const RoutingTable& other) {
  for (const auto& [router, samples] : other.samples_)
    for (const auto& [sample, theirs] : samples) {
      Choices& mine = choices(router, sample);
      for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
        if (theirs[i] >= 0) mine[i] = theirs[i];
    }
}

std::string RoutingTable::bytes() const {
  std::string out = fmt::format("routing {} {}\n", sequence_, top_k_);
  for (const auto& [router, samples] : samples_) out += fmt::format("{} {}\n", samples.size(), router);
  out += '\n';
  for (const auto& [router, samples] : samples_)
    for (const auto& [sample, values] : samples) {
      out.append(reinterpret_cast<const char*>(&sample), sizeof(sample));
      out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t));
    }
  return out;
}

Result<RoutingTable> RoutingTable::of_bytes(std::string_view bytes) {
  std::vector<std::pair<std::string, int64_t>> routers;
  long long sequence = 0, top_k = 0;
  for (bool first = true;; first = false) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return bad_table();
    const std::string line(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    if (first) {
      if (std::sscanf(line.c_str(), "routing %lld %lld", &sequence, &top_k) != 2 || sequence < 1 || top_k < 1 ||
          sequence > kMostElements / top_k)
        return bad_table();
      continue;
    }
    if (line.empty()) break;
    const size_t space = line.find(' ');
    const auto count = space == std::string::npos ? std::nullopt : parse_int(line.substr(0, space));
    if (!count || *count < 0) return bad_table();
    routers.emplace_back(line.substr(space + 1), *count);
  }
  RoutingTable table(sequence, top_k);
  const auto size = static_cast<size_t>(sequence * top_k) * sizeof(int32_t);
  for (const auto& [router, count] : routers)
    for (int64_t i = 0; i < count; ++i) {
      int64_t sample = 0;
      if (bytes.size() < sizeof(sample) + size) return bad_table();
      std::memcpy(&sample, bytes.data(), sizeof(sample));
      std::memcpy(table.choices(router, sample).data(), bytes.data() + sizeof(sample), size);
      bytes.remove_prefix(sizeof(sample) + size);
    }
  if (!bytes.empty()) return bad_table();
  return table;
}

Status RoutingTable::write(const std::filesystem::path& file) const {
  return write_file(file, bytes());
}

Result<RoutingTable> RoutingTable::read(const std::filesystem::path& file) {
  MB_ASSIGN(const std::string text, read_file(file));
  auto table = of_bytes(text);
  if (!table) return tl::unexpected<Error>(std::move(table.error()).during(file.string()));
  return table;
}

Status check_replay(const Layout& layout, const RoutingTable* replay) {
  if (!layout.replays_routing) return {};
  const std::string knob = "parallel.moe_router_replay = " + layout.config.parallel.moe_router_replay;
  if (replay == nullptr)
    return fail(ErrorCode::kBadArgument, knob + ", and no choices are at hand",
                "'reference' means something in a suite that has the one-GPU fp32 cell: give a file here");
  if (replay->sequence() == layout.sequence && replay->top_k() == layout.model.moe.top_k)
    return replay->check_experts(layout.model.moe.num_experts);
  return fail(ErrorCode::kMismatch,
              fmt::format("{}: choices of {} experts for samples of {} tokens, this run takes {} for {}", knob,
                          replay->top_k(), replay->sequence(), layout.model.moe.top_k, layout.sequence),
              "replay what a run of the same model and data recorded");
}

}  // namespace mbb::trainer
