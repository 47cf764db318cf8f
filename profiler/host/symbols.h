// Functions of a library that is opened at run time, by name.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace mbb::profiler {

// The first of `names` (sonames or paths) that the loader finds; null when there is none, and dlerror() says why. It
// stays open for the rest of the process.
inline void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  // Sets `to`, a pointer to a function; null where the library has none of that name.
  template <typename F>
  void find(F& to, const char* name) {
    to = reinterpret_cast<F>(dlsym(library_, name));
    if (to == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }  // the first name that was not found; empty: none

 private:
  void* library_;
  std::string missing_;
};

}  // namespace mbb::profiler
