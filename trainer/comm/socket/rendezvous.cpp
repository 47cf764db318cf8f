// Rank 0's door at a port that all know, or at one whose address it writes into a file that all see.
#include "trainer/comm/socket/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "profiler/base/clock.h"
#include "profiler/base/file.h"
#include "profiler/base/text.h"
#include "trainer/comm/mpi/wire.h"

namespace mbb::trainer {
namespace {

constexpr char kCome = 'C';    // job, size, rank, address
constexpr char kRoll = 'R';    // secret, addresses
constexpr char kTurned = 'T';  // why ranks were turned away, what to do about it
constexpr std::string_view kFile = "file:";
constexpr std::chrono::milliseconds kPause{20};

int64_t now_ms() {
  return monotonic_ns() / 1'000'000;
}

struct Meeting {
  std::string host;
  int port = 0;
  std::string file;
};

Result<Meeting> meeting_of(const ProcessPlace& place) {
  if (place.rendezvous.starts_with(kFile)) {
    const std::filesystem::path file = place.rendezvous.substr(kFile.size());
    if (const auto folder = file.parent_path(); !folder.empty() && !is_folder(folder))
      return fail(ErrorCode::kBadArgument,
                  fmt::format("rank {} sees no folder {} to meet in", place.rank, folder.string()),
                  "MBBENCH_MEET_AT = file:PATH lies in a folder that all ranks see; make it first");
    return Meeting{"", 0, file.string()};
  }
  const size_t colon = place.rendezvous.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : parse_int(place.rendezvous.substr(colon + 1));
  if (!port || *port < 1 || *port > 65'535)
    return fail(ErrorCode::kBadArgument, fmt::format("'{}' is no place to meet at", printable(place.rendezvous)),
                "MBBENCH_MEET_AT is HOST:PORT of rank 0, or file:PATH in a folder that all ranks see");
  return Meeting{place.rendezvous.substr(0, colon), static_cast<int>(*port), {}};
}

std::string missing_text(const std::vector<std::unique_ptr<Wire>>& wires) {
  std::vector<int> missing;
  for (size_t r = 1; r < wires.size(); ++r)
    if (!wires[r]) missing.push_back(static_cast<int>(r));
  constexpr size_t kMost = 64;
  std::string text = fmt::format("rank{} ", missing.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(missing.size(), kMost); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", missing[i]);
  if (missing.size() > kMost) text += fmt::format(" and {} more", missing.size() - kMost);
  return text;
}

// Nobody reads half an address: it gets its name when it is whole.
Status publish(const std::string& file, const std::string& text) {
  const std::string part = file + ".part";
  MB_TRY(write_file(part, text));
  std::error_code error;
  std::filesystem::rename(part, file, error);
  if (!error) return {};
  return fail(ErrorCode::kIo, fmt::format("{}: {}", file, error.message()), "the ranks meet at a file that all see");
}

// Nobody reads an address where nobody listens.
struct Unpublished {
  const std::string file;
  ~Unpublished() {
    std::error_code ignored;
    if (!file.empty()) std::filesystem::remove(file, ignored);
  }
};

// Tells those that came why there is no run.
tl::unexpected<Error> turn_all(const std::vector<std::unique_ptr<Wire>>& wires, Error error) {
  for (const auto& wire : wires)
    if (wire) wire->send({kTurned, {error.what, error.hint}});
  return tl::unexpected<Error>(std::move(error));
}

Result<Roll> receive_all(const ProcessPlace& place, const std::string& own, int64_t limit_ms,
                         const std::function<Status()>& meanwhile) {
  MB_ASSIGN(const Meeting at, meeting_of(place));
  auto door = Listener::open(place.one_host, at.port);
  if (!door)
    return fail(door.error().code,
                fmt::format("rank 0 cannot wait for the others at port {}: {}", at.port, door.error().what),
                "another program has that port; MBBENCH_MEET_AT = HOST:PORT names another, file:PATH needs none");
  if (!at.file.empty()) MB_TRY(publish(at.file, (*door)->address()));
  const Unpublished when_done{at.file};
  const auto size = static_cast<size_t>(place.size);
  std::vector<std::unique_ptr<Wire>> wires(size);
  Roll roll{std::vector<std::string>(size), {}};
  roll.addresses[0] = own;
  MB_ASSIGN(roll.secret, new_secret());
  const int64_t until = now_ms() + limit_ms;
  for (size_t missing = size - 1; missing > 0;) {
    constexpr int64_t kLookMs = 200;
    auto wire = (*door)->accept(std::min(until - now_ms(), kLookMs));
    if (!wire && meanwhile)
      if (const Status other = meanwhile(); !other) return turn_all(wires, other.error());
    if (!wire && wire.error().code == ErrorCode::kTimeout && now_ms() < until) continue;
    if (!wire)
      return turn_all(wires, {wire.error().code,
                              fmt::format("{} of {} did not come within {:g} s", missing_text(wires), place.size,
                                          static_cast<double>(limit_ms) * 1e-3),
                              "look at what those processes say; all ranks start with one command"});
    constexpr int64_t kComeMs = 5'000;
    const auto come = (*wire)->receive_one(kComeMs);
    if (!come || come->kind != kCome || come->fields.size() != 4 || come->fields[0] != place.job)
      continue;  // a stranger
    const auto theirs = parse_int(come->fields[1]), rank = parse_int(come->fields[2]);
    std::string why;
    if (!theirs || *theirs != place.size)
      why = fmt::format("rank {} says there are {} ranks, and rank 0 has {}", come->fields[2], come->fields[1],
                        place.size);
    else if (!rank || *rank < 1 || *rank >= place.size || wires[static_cast<size_t>(*rank)])
      why = fmt::format("two processes say that they are rank {}", come->fields[2]);
    if (!why.empty()) {
      wires.push_back(std::move(*wire));
      return turn_all(wires, {ErrorCode::kMismatch, why, "start every rank once, by one launcher"});
    }
    roll.addresses[static_cast<size_t>(*rank)] = come->fields[3];
    wires[static_cast<size_t>(*rank)] = std::move(*wire);
    --missing;
  }
  std::vector<std::string> fields{roll.secret};
  fields.insert(fields.end(), roll.addresses.begin(), roll.addresses.end());
  for (size_t r = 1; r < size; ++r)
    if (!wires[r]->send({kRoll, fields})) return fail(ErrorCode::kRankFailed, fmt::format("rank {} is gone", r));
  return roll;
}

// Until rank 0 is there. Who wrote an address had its door open: where that stays shut, it is gone, or the file is of a
// run before and a new address about to come.
Result<std::unique_ptr<Wire>> reach_first(const Meeting& at, int64_t limit_ms) {
  const int64_t until = now_ms() + limit_ms, gone_ms = limit_ms / 10;
  std::string last;
  for (int64_t shut_since = 0;;) {
    Result<std::unique_ptr<Wire>> wire = fail(ErrorCode::kTimeout, "rank 0 has not said where it is");
    if (at.file.empty()) {
      wire = connect_wire(at.host, at.port);
    } else if (const auto address = read_file(at.file)) {
      wire = connect_wire(*address);
      if (*address != last) last = *address, shut_since = now_ms();
      const bool shut = !wire && wire.error().code == ErrorCode::kUnavailable;
      if (shut && now_ms() - shut_since >= gone_ms)
        return fail(ErrorCode::kRankFailed, fmt::format("nobody listens there any more ({})", wire.error().what));
    }
    if (wire || now_ms() >= until) return wire;
    std::this_thread::sleep_for(kPause);
  }
}

Result<Roll> come_to_first(const ProcessPlace& place, const std::string& own, int64_t limit_ms) {
  MB_ASSIGN(const Meeting at, meeting_of(place));
  const auto no_rank_0 = [&](const std::string& why) {
    return fail(ErrorCode::kTimeout,
                fmt::format("rank {} did not meet rank 0 at {} within {:g} s: {}", place.rank, place.rendezvous,
                            static_cast<double>(limit_ms) * 1e-3, why),
                "look at what rank 0 says; MBBENCH_MEET_AT = HOST:PORT or file:PATH names another place to meet");
  };
  const auto gone = [&](const std::string& how) {
    return fail(ErrorCode::kRankFailed,
                fmt::format("rank 0 was at {} and ended before all ranks had met: {}", place.rendezvous, how),
                at.file.empty() ? "look at what rank 0 says, or how its process ended; where another program has that "
                                  "port, MBBENCH_MEET_AT = HOST:PORT or file:PATH names another place to meet"
                                : "look at what rank 0 says, or how its process ended");
  };
  auto wire = reach_first(at, limit_ms);
  if (!wire && wire.error().code == ErrorCode::kRankFailed) return gone(wire.error().what);
  if (!wire) return no_rank_0(wire.error().what);
  const std::string closed = fmt::format("it closed the connection to rank {}", place.rank);
  if (!(*wire)->send({kCome, {place.job, std::to_string(place.size), std::to_string(place.rank), own}}))
    return gone(closed);
  // All have to come before rank 0 answers, which waits for them from before it could be reached.
  constexpr int64_t kAnswerMs = 1'000;
  auto answer = (*wire)->receive_one(limit_ms + kAnswerMs);
  if (!answer && answer.error().code == ErrorCode::kIo) return gone(closed);
  if (!answer) return no_rank_0(answer.error().what);
  if (answer->kind == kTurned && answer->fields.size() == 2)
    return fail(ErrorCode::kMismatch, answer->fields[0], answer->fields[1]);
  if (answer->kind != kRoll || answer->fields.size() != static_cast<size_t>(place.size) + 1)
    return no_rank_0("what answers there is no rank of this run");
  Roll roll{{answer->fields.begin() + 1, answer->fields.end()}, answer->fields[0]};
  return roll;
}

}  // namespace

Result<Roll> call_roll(const ProcessPlace& place, const std::string& own, int64_t limit_ms,
                       const std::function<Status()>& meanwhile) {
  return place.rank == 0 ? receive_all(place, own, limit_ms, meanwhile) : come_to_first(place, own, limit_ms);
}

}  // namespace mbb::trainer
