// Sockets: listen, connect, and frames of counted fields.
#include "trainer/comm/mpi/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "profiler/base/clock.h"
#include "profiler/base/text.h"

namespace mbb::trainer {
namespace {

constexpr uint32_t kMostBytes = 1U << 20U;
constexpr int kConnectMs = 5'000;

tl::unexpected<Error> refused(const std::string& what) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(errno)),
              "ranks that are processes keep one TCP connection to rank 0; let it through");
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

void put(std::string& bytes, uint32_t value) {
  char word[4];
  std::memcpy(word, &value, 4);
  bytes.append(word, 4);
}

uint32_t word_at(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 4);
  return value;
}

// Takes the first whole frame off `bytes`: [bytes behind this word][kind]([length][field])*. A malformed one is
// dropped.
bool take_frame(std::string& bytes, WireMessage& message) {
  if (bytes.size() < 5) return false;
  const uint32_t length = word_at(bytes, 0);
  if (length > kMostBytes) {
    bytes.clear();
    return false;
  }
  if (bytes.size() < 4 + size_t{length}) return false;
  const std::string_view body = std::string_view(bytes).substr(4, length);
  message = {body.empty() ? '\0' : body[0], {}};
  for (size_t at = 1; at + 4 <= body.size();) {
    const size_t field = word_at(body, at);
    if (at + 4 + field > body.size()) break;
    message.fields.emplace_back(body.substr(at + 4, field));
    at += 4 + field;
  }
  bytes.erase(0, 4 + size_t{length});
  return true;
}

bool readable(int descriptor, int64_t limit_ms) {
  pollfd waiting{descriptor, POLLIN, 0};
  return poll(&waiting, 1, static_cast<int>(std::max<int64_t>(limit_ms, 0))) > 0;
}

Result<std::unique_ptr<Wire>> connect_to(const std::string& host, int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return refused("opening a socket");
  auto wire = std::make_unique<Wire>(descriptor);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &to.sin_addr) != 1) return refused("address " + host);
  const int flags = fcntl(descriptor, F_GETFL);
  fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
  int status = connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  if (status != 0 && errno == EINPROGRESS) {
    pollfd waiting{descriptor, POLLOUT, 0};
    socklen_t length = sizeof status;
    if (poll(&waiting, 1, kConnectMs) <= 0) {
      errno = ETIMEDOUT;
      status = -1;
    } else if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &status, &length) == 0 && status != 0) {
      errno = status;
    }
  }
  if (status != 0) {
    const bool nobody = errno == ECONNREFUSED;
    auto error = refused(fmt::format("connecting to rank 0 at {}:{}", host, port));
    if (nobody) error.value().code = ErrorCode::kUnavailable;
    return error;
  }
  fcntl(descriptor, F_SETFL, flags);
  return wire;
}

}  // namespace

Wire::Wire(int descriptor) : descriptor_(descriptor) {
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval limit{2, 0};
  setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

Wire::~Wire() {
  close(descriptor_);
}

bool Wire::send(const WireMessage& message) {
  std::string body(1, message.kind);
  for (const std::string& field : message.fields) {
    put(body, static_cast<uint32_t>(field.size()));
    body += field;
  }
  std::string frame;
  put(frame, static_cast<uint32_t>(body.size()));
  frame += body;
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t went = ::send(descriptor_, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (went < 0 && errno == EINTR) continue;
    if (went <= 0) return false;
    sent += static_cast<size_t>(went);
  }
  return true;
}

std::vector<WireMessage> Wire::receive(bool& open) {
  open = true;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = recv(descriptor_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      pending_.append(buffer.data(), static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    open = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    break;
  }
  std::vector<WireMessage> messages;
  WireMessage message;
  while (take_frame(pending_, message)) messages.push_back(std::move(message));
  return messages;
}

Result<WireMessage> Wire::receive_one(int64_t limit_ms) {
  const int64_t until_ns = monotonic_ns() + limit_ms * 1'000'000;
  std::array<char, 4096> buffer{};
  for (;;) {
    WireMessage message;
    if (take_frame(pending_, message)) return message;
    if (!readable(descriptor_, (until_ns - monotonic_ns()) / 1'000'000))
      return fail(ErrorCode::kTimeout, fmt::format("no message within {} ms", limit_ms));
    const ssize_t got = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(ErrorCode::kIo, "the other side closed the connection");
    pending_.append(buffer.data(), static_cast<size_t>(got));
  }
}

Result<std::unique_ptr<Listener>> Listener::open(bool loopback, int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return refused("opening a socket");
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  own.sin_port = htons(static_cast<uint16_t>(port));
  // A port that all know may still be held by connections of a run before.
  const int on = 1;
  if (port != 0) setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  socklen_t length = sizeof own;
  if (bind(descriptor, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 || listen(descriptor, 1024) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    auto error = refused("listening");
    close(descriptor);
    return error;
  }
  return std::unique_ptr<Listener>(new Listener(descriptor, ntohs(own.sin_port), loopback));
}

Listener::~Listener() {
  close(descriptor_);
}

std::string Listener::address() const {
  constexpr int kMostAddresses = 8;
  std::string text = fmt::format("{} {}", host_name(), port_);
  ifaddrs* all = nullptr;
  if (loopback_ || getifaddrs(&all) != 0) return text + " 127.0.0.1";
  int listed = 0;
  for (const ifaddrs* one = all; one != nullptr && listed < kMostAddresses; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char name[INET_ADDRSTRLEN] = {};
    const auto* const at = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (inet_ntop(AF_INET, &at->sin_addr, name, sizeof name) == nullptr || std::string_view(name) == "127.0.0.1")
      continue;
    text += fmt::format(" {}", name);
    ++listed;
  }
  freeifaddrs(all);
  return text;
}

Result<std::unique_ptr<Wire>> Listener::accept(int64_t limit_ms) {
  if (!readable(descriptor_, limit_ms))
    return fail(ErrorCode::kTimeout, fmt::format("nobody connected within {} ms", limit_ms));
  const int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) return refused("accepting a connection");
  return std::make_unique<Wire>(descriptor);
}

Result<std::unique_ptr<Wire>> connect_wire(const std::string& address) {
  const std::vector<std::string_view> parts = split(address, ' ');
  const auto port = parts.size() < 2 ? std::nullopt : parse_int(parts[1]);
  if (!port) return fail(ErrorCode::kBadArgument, fmt::format("'{}' is no address of rank 0", printable(address)));
  Result<std::unique_ptr<Wire>> last = fail(ErrorCode::kIo, "rank 0 has no address that another host can reach");
  if (parts[0] == host_name()) last = connect_to("127.0.0.1", static_cast<int>(*port));
  for (size_t i = 2; i < parts.size() && !last; ++i) last = connect_to(std::string(parts[i]), static_cast<int>(*port));
  return last;
}

Result<std::unique_ptr<Wire>> connect_wire(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), nullptr, &wanted, &found); status != 0)
    return fail(ErrorCode::kIo, fmt::format("finding host {}: {}", host, gai_strerror(status)));
  char address[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr, address, sizeof address);
  freeaddrinfo(found);
  return connect_to(address, port);
}

Result<std::string> new_secret() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return refused("asking the kernel for random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace mbb::trainer
