// Heartbeats, the first failure, and the end of the world.
#include "trainer/comm/mpi/control.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

constexpr int64_t kMeetMs = 60'000;  // for all ranks to come; an overfull machine starts processes slowly
constexpr size_t kMostListed = 64;

// Kinds of messages, with their fields.
constexpr char kHello = 'H';     // rank, secret
constexpr char kPlace = 'P';     // life, call, path, what it waits for
constexpr char kFailed = 'F';    // rank at fault, code, what, hint
constexpr char kReturned = 'D';  // rank
constexpr char kRelease = 'A';   // all have returned
constexpr char kEnd = 'E';       // rank, code, what, hint, place, standing

int64_t now_ms() {
  return monotonic_ns() / 1'000'000;
}

uint64_t number(const std::string& text) {
  const auto value = parse_int(text);
  return value ? static_cast<uint64_t>(*value) : 0;
}

std::string field(const WireMessage& message, size_t index) {
  return index < message.fields.size() ? message.fields[index] : std::string();
}

std::string code_text(const Error& error) {
  return std::to_string(static_cast<int>(error.code));
}

Error error_at(const WireMessage& message, size_t first) {
  const uint64_t code = std::min<uint64_t>(number(field(message, first)), static_cast<uint64_t>(ErrorCode::kNumerics));
  return {static_cast<ErrorCode>(code), field(message, first + 1), field(message, first + 2)};
}

}  // namespace

Result<std::unique_ptr<Control>> Control::create(int rank, int size, ControlOptions options) {
  MB_ASSIGN(std::unique_ptr<Places> places, Places::create(size, options.places_file));
  return std::unique_ptr<Control>(new Control(rank, size, std::move(options), std::move(places)));
}

Control::Control(int rank, int size, ControlOptions options, std::unique_ptr<Places> places)
    : rank_(rank),
      size_(size),
      options_(std::move(options)),
      places_(std::move(places)),
      peers_(static_cast<size_t>(size)),
      returned_(static_cast<size_t>(size)) {}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Result<std::string> Control::open_door(bool one_host) {
  MB_ASSIGN(door_, Listener::open(one_host));
  MB_ASSIGN(secret_, new_secret());
  return secret_ + " " + door_->address();
}

Status Control::await_all() {
  const int64_t until = now_ms() + kMeetMs;
  for (int missing = size_ - 1; missing > 0;) {
    constexpr int64_t kLookMs = 200;
    auto wire = door_->accept(std::min(until - now_ms(), kLookMs));
    if (!wire && options_.meanwhile) MB_TRY(options_.meanwhile());
    if (!wire && wire.error().code == ErrorCode::kTimeout && now_ms() < until) continue;
    if (!wire)
      return mbb::fail(wire.error().code,
                       fmt::format("of {} ranks that met, {} did not connect to rank 0: {}", size_, unconnected(),
                                   wire.error().what),
                       "look at what those processes say, or how they ended");
    constexpr int64_t kHelloMs = 5'000;
    const auto hello = (*wire)->receive_one(kHelloMs);
    if (!hello || hello->kind != kHello || field(*hello, 1) != secret_) continue;  // a stranger
    const uint64_t rank = number(field(*hello, 0));
    if (rank == 0 || rank >= peers_.size() || peers_[rank].wire) continue;
    peers_[rank].wire = std::move(*wire);
    --missing;
  }
  door_.reset();
  return {};
}

std::string Control::unconnected() const {
  std::vector<size_t> ranks;
  for (size_t rank = 1; rank < peers_.size() && ranks.size() < kMostListed; ++rank)
    if (!peers_[rank].wire) ranks.push_back(rank);
  return fmt::format("{}", fmt::join(ranks, ", "));
}

Status Control::connect(const std::string& address) {
  const size_t cut = address.find(' ');
  if (cut == std::string::npos) return mbb::fail(ErrorCode::kMismatch, "rank 0 told no address");
  MB_ASSIGN(peers_[0].wire, connect_wire(address.substr(cut + 1)));
  if (!peers_[0].wire->send({kHello, {std::to_string(rank_), address.substr(0, cut)}}))
    return mbb::fail(ErrorCode::kIo, "rank 0 does not answer");
  return {};
}

void Control::start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "control");
    supervise();
  });
}

void Control::waits(std::string text) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<size_t>(rank_)].waits = std::move(text);
}

Status Control::check() const {
  if (!ended_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  if (cause_->rank == rank_) return tl::unexpected<Error>(cause_->error);
  return mbb::fail(ErrorCode::kRankFailed, fmt::format("{} failed: {}", cause_->place, cause_->error.what),
                   cause_->error.hint);
}

bool Control::returned(int rank) const {
  return returned_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
}

void Control::fail(int rank, Error error) {
  const std::lock_guard lock(mutex_);
  if (cause_) return;
  if (rank_ != 0) {
    // Where another rank stood is known to rank 0, which then tells all.
    const bool own = rank == rank_;
    if (!own && std::exchange(accused_, true)) return;
    heartbeat();
    if (peers_[0].wire)
      peers_[0].wire->send({kFailed, {std::to_string(rank), code_text(error), error.what, error.hint}});
    if (!own) return;
  }
  end({rank, std::move(error), places_->text(rank), {}});
}

Status Control::finish(Status status) {
  std::unique_lock lock(mutex_);
  if (!status.has_value()) {
    // The cause's own rank may say more about it than the communicator could ("reading batch 3: ...").
    if (cause_ && cause_->rank == rank_ && cause_->error.code == status.error().code) cause_->error = status.error();
    lock.unlock();
    fail(rank_, status.error());
    lock.lock();
  }
  own_returned_ = true;
  mark_returned(rank_);
  if (rank_ == 0) {
    tell_all({kReturned, {"0"}});
    changed_.wait(lock, [&] { return cause_.has_value() || all_done(); });
    // The others read what ended the world before their connections close.
    if (cause_) changed_.wait_for(lock, std::chrono::milliseconds(options_.stuck_grace_ms), [&] { return all_done(); });
    if (!cause_) tell_all({kRelease, {}});
  } else {
    heartbeat();
    if (peers_[0].wire) peers_[0].wire->send({kReturned, {std::to_string(rank_)}});
    changed_.wait(lock, [&] { return cause_.has_value() || released_; });
  }
  closing_ = true;
  if (!cause_) return {};
  Error error = cause_->error;
  if (!cause_->standing.empty()) error.what += fmt::format(" [{}]", cause_->standing);
  return tl::unexpected<Error>(std::move(error).during(cause_->place));
}

void Control::supervise() {
  std::vector<pollfd> waiting;
  for (;;) {
    waiting.clear();
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      for (const Peer& peer : peers_)
        if (peer.wire && !peer.gone) waiting.push_back({peer.wire->descriptor(), POLLIN, 0});
    }
    poll(waiting.data(), waiting.size(), kHeartbeatMs);
    std::optional<Error> stuck;
    {
      const std::lock_guard lock(mutex_);
      for (int peer = 0; peer < size_; ++peer) read_from(peer);
      if (rank_ == 0) {
        tell_own_place();
        watch_progress();
      } else {
        heartbeat();
        watch_first();
      }
      stuck = stuck_error();
    }
    if (stuck && options_.on_stuck) options_.on_stuck(*stuck);
  }
}

void Control::read_from(int peer) {
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (!from.wire || from.gone) return;
  bool open = true;
  for (const WireMessage& message : from.wire->receive(open)) take(peer, message);
  if (!open) lost(peer);
}

void Control::take(int peer, const WireMessage& message) {
  if (rank_ == 0) return take_at_first(peer, message);
  ++heard_;
  if (message.kind == kPlace)
    places_->set(peer, field(message, 2), number(field(message, 1)), number(field(message, 0)));
  if (message.kind == kReturned) mark_returned(static_cast<int>(number(field(message, 0))));
  if (message.kind == kRelease) {
    released_ = true;
    changed_.notify_all();
  }
  if (message.kind == kEnd)
    end({static_cast<int>(number(field(message, 0))), error_at(message, 1), field(message, 4), field(message, 5)});
}

void Control::take_at_first(int peer, const WireMessage& message) {
  if (message.kind == kPlace) {
    places_->set(peer, field(message, 2), number(field(message, 1)), number(field(message, 0)));
    peers_[static_cast<size_t>(peer)].waits = field(message, 3);
  }
  if (message.kind == kReturned) {
    mark_returned(peer);
    tell_all({kReturned, {std::to_string(peer)}});
  }
  if (message.kind == kFailed) {
    const auto rank = static_cast<int>(std::min<uint64_t>(number(field(message, 0)), peers_.size() - 1));
    end({rank, error_at(message, 1), places_->text(rank), {}});
  }
}

void Control::lost(int peer) {
  Peer& from = peers_[static_cast<size_t>(peer)];
  from.gone = true;
  changed_.notify_all();
  if (released_ || from.returned) return;
  end({peer,
       Error{ErrorCode::kRankFailed, "its process ended without a word: it was killed, or it crashed",
             "the system's log (dmesg) says whether memory ran out; the rank's own stderr says more"},
       places_->text(peer),
       {}});
}

void Control::heartbeat() {
  if (!peers_[0].wire || peers_[0].gone) return;
  peers_[0].wire->send(place_message());
}

WireMessage Control::place_message() const {
  const Places::Place at = places_->place(rank_);
  return {kPlace,
          {std::to_string(places_->life(rank_)), std::to_string(at.call), at.path,
           peers_[static_cast<size_t>(rank_)].waits}};
}

// So that those who stay know where rank 0 stood. Seldom: every message wakes a thread of every rank.
void Control::tell_own_place() {
  if (told_place_ms_ != 0 && now_ms() - told_place_ms_ < kFirstTellsMs) return;
  told_place_ms_ = now_ms();
  tell_all(place_message());
}

void Control::watch_progress() {
  if (cause_) return;
  const int64_t limit_ms = options_.patience != nullptr ? options_.patience->ms() : options_.no_progress_ms;
  uint64_t life = 0;
  for (int rank = 0; rank < size_; ++rank) life += places_->life(rank);
  if (!quiet_.too_long(life, limit_ms, monotonic_ns())) return;
  const auto runs = [](const Peer& peer) { return !peer.returned && peer.waits.empty(); };
  const auto on_device = [](const Peer& peer) { return !peer.returned && peer.waits == kDevice; };
  auto found = std::find_if(peers_.begin(), peers_.end(), runs);
  // What a device waits for is a peer that its host knows nothing of.
  if (found == peers_.end()) found = std::find_if(peers_.begin(), peers_.end(), on_device);
  const int rank = found == peers_.end() ? 0 : static_cast<int>(found - peers_.begin());
  const char* const what = found == peers_.end() ? "all ranks wait and none can go on" : "no rank made progress";
  end({rank,
       Error{found == peers_.end() ? ErrorCode::kRankFailed : ErrorCode::kTimeout,
             fmt::format("{} for {} ms", what, limit_ms),
             "look at the rank that runs; raise host.no_progress_limit_s if one op takes that long"},
       places_->text(rank),
       {}});
}

// From its first word on: before, it waits for ranks that have not connected.
void Control::watch_first() {
  if (cause_ || released_ || heard_ == 0) return;
  const int64_t limit_ms =
      std::max(options_.silent_ms, options_.patience == nullptr ? options_.no_progress_ms : int64_t{0});
  if (!quiet_.too_long(heard_, limit_ms, monotonic_ns())) return;
  end({0,
       Error{ErrorCode::kTimeout, fmt::format("its process has said nothing for {} ms", limit_ms),
             "it is stopped, or its host is gone"},
       places_->text(0),
       {}});
}

std::optional<Error> Control::stuck_error() {
  if (!cause_ || own_returned_ || told_stuck_) return std::nullopt;
  if (monotonic_ns() - ended_ns_ < options_.stuck_grace_ms * 1'000'000) return std::nullopt;
  told_stuck_ = true;
  Error error = cause_->error;
  error.what = fmt::format("{}: {}; {} is still running after {} ms [{}]", cause_->place, cause_->error.what,
                           places_->text(rank_), options_.stuck_grace_ms, cause_->standing);
  return error;
}

void Control::end(Cause cause) {
  if (cause_) return;
  if (rank_ == 0) cause.standing = standing();
  cause_ = std::move(cause);
  ended_ns_ = monotonic_ns();
  ended_.store(true, std::memory_order_release);
  if (rank_ == 0)
    tell_all({kEnd,
              {std::to_string(cause_->rank), code_text(cause_->error), cause_->error.what, cause_->error.hint,
               cause_->place, cause_->standing}});
  changed_.notify_all();
}

void Control::mark_returned(int rank) {
  if (rank < 0 || rank >= size_) return;
  peers_[static_cast<size_t>(rank)].returned = true;
  returned_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  changed_.notify_all();
}

bool Control::all_done() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.returned || peer.gone; });
}

void Control::tell_all(const WireMessage& message) {
  for (Peer& peer : peers_)
    if (peer.wire && !peer.gone) peer.wire->send(message);
}

std::string Control::standing() const {
  std::string text;
  for (size_t i = 0; i < std::min(peers_.size(), kMostListed); ++i) {
    const Peer& peer = peers_[i];
    if (i > 0) text += "; ";
    text += places_->text(static_cast<int>(i));
    text += peer.returned        ? " has returned"
            : peer.gone          ? " is gone"
            : peer.waits.empty() ? " runs"
                                 : " waits in " + peer.waits;
  }
  if (peers_.size() > kMostListed) text += fmt::format("; and {} more ranks", peers_.size() - kMostListed);
  return text;
}

}  // namespace mbb::trainer
