// JSON lines in and out.
#include "baselines/pins/pins.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "profiler/base/file.h"
#include "profiler/base/text.h"

namespace mbb::baselines {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Pin& pin) {
  return {{"accept", pin.id},
          {"cell", pin.cell},
          {"model", pin.model},
          {"suite", pin.suite},
          {"metric", pin.metric},
          {"unit", pin.unit},
          {"identity", pin.identity_hash},
          {"class", pin.class_hash},
          {"nights", pin.nights},
          {"steps", pin.steps},
          {"runs", pin.runs},
          {"build", pin.build},
          {"epoch", pin.epoch},
          {"product", pin.product},
          {"configuration", pin.configuration},
          {"author", pin.author},
          {"reason", pin.reason},
          {"accepted_unix_ns", pin.accepted_unix_ns},
          {"expires_unix_ns", pin.expires_unix_ns}};
}

// Throws what nlohmann throws on a missing or wrong field; read_pins turns it into an error with the line.
Pin from_json(const Json& line) {
  Pin pin;
  line.at("accept").get_to(pin.id);
  line.at("cell").get_to(pin.cell);
  line.at("model").get_to(pin.model);
  line.at("metric").get_to(pin.metric);
  line.at("unit").get_to(pin.unit);
  line.at("identity").get_to(pin.identity_hash);
  line.at("class").get_to(pin.class_hash);
  line.at("nights").get_to(pin.nights);
  line.at("runs").get_to(pin.runs);
  line.at("build").get_to(pin.build);
  pin.suite = line.value("suite", "");
  pin.steps = line.value("steps", std::int64_t{0});
  pin.epoch = line.value("epoch", "");
  pin.product = line.value("product", "");
  pin.configuration = line.value("configuration", "");
  line.at("author").get_to(pin.author);
  line.at("reason").get_to(pin.reason);
  line.at("accepted_unix_ns").get_to(pin.accepted_unix_ns);
  line.at("expires_unix_ns").get_to(pin.expires_unix_ns);
  return pin;
}

Status take_line(const Json& line, std::vector<Pin>& pins) {
  if (!line.contains("end")) {
    pins.push_back(from_json(line));
    const auto has_launch = [](const auto& night) { return !night.empty(); };
    if (std::any_of(pins.back().nights.begin(), pins.back().nights.end(), has_launch)) return {};
    return fail(ErrorCode::kBadFile, fmt::format("'{}' has no launch", printable(pins.back().id)));
  }
  const std::string id = line.at("end").get<std::string>();
  const auto pin = std::find_if(pins.begin(), pins.end(), [&](const Pin& p) { return p.id == id; });
  if (pin == pins.end())
    return fail(ErrorCode::kBadFile, fmt::format("it ends '{}', which no line accepts", printable(id)));
  pin->ended_by = fmt::format("{}: {}", line.at("author").get<std::string>(), line.at("reason").get<std::string>());
  return {};
}

// Behind a last line that somebody's editor left without an end, ours begins a line of its own.
Status append_lines(const std::string& file, const std::vector<Json>& lines) {
  std::string text;
  if (file_exists(file)) {
    MB_ASSIGN(const std::string before, read_file(file));
    if (!before.empty() && before.back() != '\n') text = "\n";
  }
  for (const Json& line : lines) text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return append_file(file, text);
}

}  // namespace

Result<std::vector<Pin>> read_pins(const std::string& file) {
  std::vector<Pin> pins;
  if (!file_exists(file)) return pins;
  MB_ASSIGN(const std::string text, read_file(file));
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (trim(line).empty()) continue;
    Status taken;
    try {
      taken = take_line(Json::parse(line), pins);
    } catch (const nlohmann::json::exception& error) {
      taken = fail(ErrorCode::kBadFile, printable(error.what(), 200));
    }
    if (!taken)
      return fail(ErrorCode::kBadFile, fmt::format("{}:{}: no baseline line: {}", file, number, taken.error().what),
                  "restore the file from version control; lines are only ever appended");
  }
  return pins;
}

Status append_pins(const std::string& file, const std::vector<Pin>& pins) {
  std::vector<Json> lines;
  for (const Pin& pin : pins) {
    if (trim(pin.author).empty() || trim(pin.reason).empty())
      return fail(ErrorCode::kBadArgument, "a baseline needs an author and a reason", "give --author and --reason");
    if (pin.nights.empty() || pin.nights.front().empty())
      return fail(ErrorCode::kBadArgument, fmt::format("cell {}: no launch to accept", pin.cell));
    lines.push_back(to_json(pin));
  }
  MB_TRY(read_pins(file));
  return append_lines(file, lines);
}

Status end_pin(const std::string& file, const std::string& id, const std::string& author, const std::string& reason) {
  if (trim(author).empty() || trim(reason).empty())
    return fail(ErrorCode::kBadArgument, "ending a baseline needs an author and a reason",
                "give --author and --reason");
  MB_ASSIGN(const auto pins, read_pins(file));
  const auto pin = std::find_if(pins.begin(), pins.end(), [&](const Pin& p) { return p.id == id; });
  if (pin == pins.end())
    return fail(ErrorCode::kNotFound, fmt::format("no baseline '{}' in {}", printable(id), file),
                "`mbbench baseline list` lists them");
  if (!pin->ended_by.empty())
    return fail(ErrorCode::kBadArgument, fmt::format("baseline {} has ended already ({})", id, pin->ended_by));
  return append_lines(file, {Json{{"end", id}, {"author", author}, {"reason", reason}}});
}

const Pin* find_pin(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& class_hash,
                    const std::string& epoch, const std::string& metric, std::int64_t now_unix_ns) {
  const auto stands = [&](const Pin& p) {
    return p.identity_hash == identity_hash && p.class_hash == class_hash && (p.epoch.empty() || p.epoch == epoch) &&
           p.metric == metric && p.ended_by.empty() && !has_expired(p, now_unix_ns);
  };
  const auto found = std::find_if(pins.rbegin(), pins.rend(), stands);
  return found == pins.rend() ? nullptr : &*found;
}

bool stands(const std::vector<Pin>& pins, const Pin& pin, std::int64_t now_unix_ns) {
  return find_pin(pins, pin.identity_hash, pin.class_hash, pin.epoch, pin.metric, now_unix_ns) == &pin;
}

std::int64_t steps_due(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& class_hash) {
  const auto found = std::find_if(pins.rbegin(), pins.rend(), [&](const Pin& p) {
    return p.identity_hash == identity_hash && p.class_hash == class_hash && p.ended_by.empty();
  });
  return found == pins.rend() ? 0 : found->steps;
}

const Pin* find_any_pin(const std::vector<Pin>& pins, const std::string& identity_hash, const std::string& metric) {
  const auto fits = [&](const Pin& p) {
    return p.identity_hash == identity_hash && p.metric == metric && p.ended_by.empty();
  };
  const auto found = std::find_if(pins.rbegin(), pins.rend(), fits);
  return found == pins.rend() ? nullptr : &*found;
}

}  // namespace mbb::baselines
