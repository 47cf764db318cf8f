// Stands in for what the C++ library asks of a newer glibc than the one a tarball may meet.
//
// Debian 12's libstdc++, which is linked in, draws std::random_device from arc4random (glibc 2.36). With this in its
// place the program starts from glibc 2.35 on, which Ubuntu 22.04 has; libgcc's _dl_find_object sets that limit.
#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) std::abort();
  return value;
}
