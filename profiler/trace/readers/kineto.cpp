// A streaming reader of Kineto's Chrome JSON.
#include "profiler/trace/readers/kineto.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include <fmt/core.h>

#include "profiler/base/text.h"
#include "profiler/trace/readers/gzip_stream.h"
#include "profiler/trace/readers/json_scanner.h"

namespace mbb::profiler {

namespace {

// Decimal microseconds, exact to the nanosecond (further digits are rounded). False when it is no such number or does
// not fit.
bool parse_micros(std::string_view text, int64_t& ns, bool& fractional) {
  const std::string_view whole_text = text;
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  constexpr int64_t kMost = 4'000'000'000'000'000;  // differences of two such times fit 64-bit nanoseconds
  int64_t whole = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    whole = whole * 10 + (text[i] - '0');
    if (whole > kMost) return false;
  }
  int64_t fraction = 0;
  fractional = false;
  if (i < text.size() && text[i] == '.') {
    int digits = 0;
    for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, ++digits) {
      fractional |= text[i] != '0';
      if (digits < 3) fraction = fraction * 10 + (text[i] - '0');
      if (digits == 3 && text[i] >= '5') ++fraction;
    }
    for (; digits < 3; ++digits) fraction *= 10;
  }
  if (i < text.size()) {  // an exponent: rare, through a double
    const auto value = parse_double(whole_text);
    if (!value || std::abs(*value) > static_cast<double>(kMost)) return false;
    ns = std::llround(*value * 1000.0);
    fractional = ns % 1000 != 0;
    return true;
  }
  ns = whole * 1000 + fraction;
  if (negative) ns = -ns;
  return true;
}

// Collects events. Levels: 1 root object, 2 traceEvents or distributedInfo, 3 an event, 4 its args.
class Collector {
 public:
  explicit Collector(KinetoTrace& out) : out_(out) {}

  void literal() { key_ = kOther; }
  void number(std::string_view text) { value(text, true); }
  void string(std::string_view text) { value(text, false); }
  void key(std::string_view key) {
    if (depth_ == root_) key_ = root_key(key);
    if (depth_ == root_ + 1 && in_ours_) key_ = key == "note" ? kNote : kOther;
    if (depth_ == root_ + 1 && in_info_) key_ = key == "rank" ? kRank : key == "world_size" ? kWorld : kOther;
    if (depth_ == root_ + 2 && in_devices_) key_ = key == "name" ? kDeviceName : kOther;
    if (depth_ == root_ + 2 && in_event_) key_ = event_key(key);
    if (depth_ == root_ + 3 && in_args_) key_ = args_key(key);
  }

  void start_object() {
    ++depth_;
    if (depth_ == 1) root_ = 1;
    if (depth_ == root_ + 1 && key_ == kInfo) in_info_ = true;
    if (depth_ == root_ + 1 && key_ == kOurs) in_ours_ = true;
    if (depth_ == root_ + 2 && in_events_) begin_event();
    if (depth_ == root_ + 3 && in_event_ && key_ == kArgs) in_args_ = true;
    key_ = kOther;
  }
  void end_object() {
    if (depth_ == root_ + 3) in_args_ = false;
    if (depth_ == root_ + 2 && in_event_) end_event();
    if (depth_ == root_ + 1) in_info_ = in_ours_ = false;
    --depth_;
  }
  void start_array() {
    ++depth_;
    if (depth_ == 1) {  // the other Chrome form: the file is the list of events
      root_ = 0;
      in_events_ = saw_events_ = true;
    } else if (depth_ == root_ + 1 && key_ == kEvents) {
      in_events_ = saw_events_ = true;
    } else if (depth_ == root_ + 1 && key_ == kDevices) {
      in_devices_ = true;
    }
    key_ = kOther;
  }
  void end_array() {
    if (depth_ == root_ + 1) in_events_ = in_devices_ = false;
    --depth_;
  }

  bool saw_events() const { return saw_events_; }
  void finish() { out_.strings = strings_.strings(); }

 private:
  enum KeyId {
    kOther,
    kEvents,
    kInfo,
    kOurs,
    kNote,
    kDevices,
    kDeviceName,
    kRank,
    kWorld,
    kArgs,
    kPhase,
    kCategory,
    kName,
    kThread,
    kStart,
    kDuration,
    kStream,
    kDevice,
    kCorrelation,
    kCollectiveName,
    kGroup,
    kDescription,
    kRanks,
    kType,
    kElements,
    kGroupSize
  };

  static KeyId root_key(std::string_view key) {
    static constexpr std::pair<std::string_view, KeyId> kKeys[] = {
        {"traceEvents", kEvents}, {"distributedInfo", kInfo}, {"deviceProperties", kDevices}, {"mbbench", kOurs}};
    for (const auto& [text, id] : kKeys)
      if (key == text) return id;
    return kOther;
  }
  static KeyId event_key(std::string_view key) {
    static constexpr std::pair<std::string_view, KeyId> kKeys[] = {
        {"ph", kPhase}, {"cat", kCategory}, {"name", kName}, {"tid", kThread},
        {"ts", kStart}, {"dur", kDuration}, {"args", kArgs}};
    for (const auto& [text, id] : kKeys)
      if (key == text) return id;
    return kOther;
  }
  static KeyId args_key(std::string_view key) {
    static constexpr std::pair<std::string_view, KeyId> kKeys[] = {{"stream", kStream},
                                                                   {"device", kDevice},
                                                                   {"correlation", kCorrelation},
                                                                   {"Collective name", kCollectiveName},
                                                                   {"Process Group Name", kGroup},
                                                                   {"Process Group Description", kDescription},
                                                                   {"Process Group Ranks", kRanks},
                                                                   {"dtype", kType},
                                                                   {"In msg nelems", kElements},
                                                                   {"Group size", kGroupSize}};
    for (const auto& [text, id] : kKeys)
      if (key == text) return id;
    return kOther;
  }

  void begin_event() {
    in_event_ = true;
    event_ = {};
    collective_ = {};
    complete_ = has_name_ = has_start_ = has_collective_ = broken_ = false;
  }

  void end_event() {
    in_event_ = false;
    if (!complete_) {
      ++out_.other_events;
      return;
    }
    const bool overflows =
        event_.duration_ns > 0 && event_.start_ns > std::numeric_limits<int64_t>::max() - event_.duration_ns;
    if (!has_name_ || !has_start_ || broken_ || overflows) {
      ++out_.malformed_events;
      return;
    }
    if (has_collective_) {
      event_.collective = static_cast<int32_t>(out_.collectives.size());
      out_.collectives.push_back(std::move(collective_));
    }
    out_.events.push_back(event_);
  }

  template <typename Int>
  void integer(std::string_view text, Int& to) {
    const auto parsed = parse_int(text);
    if (parsed && *parsed >= std::numeric_limits<Int>::min() && *parsed <= std::numeric_limits<Int>::max())
      to = static_cast<Int>(*parsed);
  }

  void collective_text(std::string_view text, std::string& to) {
    to = text;
    has_collective_ = true;
  }

  void add_device(std::string_view model) {
    if (std::find(out_.devices.begin(), out_.devices.end(), model) == out_.devices.end())
      out_.devices.emplace_back(model);
  }

  void value(std::string_view text, bool number) {
    switch (key_) {
      case kOther: return;
      case kNote: out_.note = text; break;
      case kDeviceName: add_device(text); break;
      case kRank: integer(text, out_.rank); break;
      case kWorld: integer(text, out_.world_size); break;
      case kPhase: complete_ = text == "X"; break;
      case kCategory: event_.category = strings_.intern(text); break;
      case kName:
        event_.name = strings_.intern(text);
        has_name_ = true;
        break;
      case kThread: integer(text, event_.thread); break;
      case kStart:
        has_start_ = true;
        broken_ |= !number || !parse_micros(text, event_.start_ns, event_.fractional);
        break;
      case kDuration: {
        bool ignored = false;
        broken_ |= !number || !parse_micros(text, event_.duration_ns, ignored) || event_.duration_ns < 0;
        break;
      }
      case kStream: integer(text, event_.stream); break;
      case kDevice: integer(text, event_.device); break;
      case kCorrelation: integer(text, event_.correlation); break;
      case kCollectiveName: collective_text(text, collective_.name); break;
      case kGroup: collective_text(text, collective_.group); break;
      case kDescription: collective_text(text, collective_.description); break;
      case kRanks: collective_text(text, collective_.ranks); break;
      case kType: collective_.dtype = text; break;
      case kElements: integer(text, collective_.in_elements); break;
      case kGroupSize: integer(text, collective_.group_size); break;
      case kEvents:
      case kInfo:
      case kDevices:
      case kOurs:
      case kArgs: break;
    }
    key_ = kOther;
  }

  KinetoTrace& out_;
  StringTable strings_;
  int depth_ = 0;
  int root_ = 1;
  KeyId key_ = kOther;
  bool in_info_ = false;
  bool in_ours_ = false;
  bool in_events_ = false;
  bool in_devices_ = false;
  bool in_event_ = false;
  bool in_args_ = false;
  bool saw_events_ = false;
  KinetoEvent event_;
  KinetoCollective collective_;
  bool complete_ = false;
  bool has_name_ = false;
  bool has_start_ = false;
  bool has_collective_ = false;
  bool broken_ = false;
};

}  // namespace

Result<KinetoTrace> read_kineto(const std::filesystem::path& path) {
  MB_ASSIGN(GzipStream file, GzipStream::open(path));
  KinetoTrace trace;
  Collector collector(trace);
  if (Status scanned = JsonScanner(file, collector).run(); !scanned) {
    // The stream's own errors name the file already.
    if (scanned.error().what.find(path.string()) != std::string::npos) return tl::unexpected(scanned.error());
    return tl::unexpected(std::move(scanned.error()).during(path.string()));
  }
  if (!collector.saw_events())
    return fail(ErrorCode::kBadFile, fmt::format("{}: JSON without traceEvents: no Chrome trace", path.string()));
  collector.finish();
  return trace;
}

}  // namespace mbb::profiler
