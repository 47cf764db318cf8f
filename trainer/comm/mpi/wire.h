// Short messages over TCP, between processes that share a secret.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/base/error.h"

namespace mbb::trainer {

struct WireMessage {
  char kind = 0;
  std::vector<std::string> fields;
};

class Wire {
 public:
  explicit Wire(int descriptor);  // takes it
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int descriptor() const { return descriptor_; }
  // False when the other side is gone, or takes nothing for two seconds.
  bool send(const WireMessage& message);
  // What has arrived, whole messages only, without waiting. `open` is false when the other side has closed.
  std::vector<WireMessage> receive(bool& open);
  // Waits for one message; kTimeout, kIo.
  Result<WireMessage> receive_one(int64_t limit_ms);

 private:
  int descriptor_;
  std::string pending_;
};

class Listener {
 public:
  // On this port (0: an unused one), of the loopback device only or of all.
  static Result<std::unique_ptr<Listener>> open(bool loopback, int port = 0);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int descriptor() const { return descriptor_; }
  // "host port address address ...", for connect_wire on another host or this one.
  std::string address() const;
  Result<std::unique_ptr<Wire>> accept(int64_t limit_ms);

 private:
  Listener(int descriptor, int port, bool loopback) : descriptor_(descriptor), port_(port), loopback_(loopback) {}
  int descriptor_, port_;
  bool loopback_;
};

// kUnavailable: nobody listens there; any other failure is kIo or of the address.
Result<std::unique_ptr<Wire>> connect_wire(const std::string& address);
// Of a host by name or number.
Result<std::unique_ptr<Wire>> connect_wire(const std::string& host, int port);

// 32 hexadecimal digits nobody can guess.
Result<std::string> new_secret();

}  // namespace mbb::trainer
