// Stands in for what the C++ library asks of a newer glibc than the one a tarball may meet.
//
// Debian 12's libstdc++, which is linked in, draws std::random_device from arc4random (glibc 2.36). With this in its
// place, and libgcc_s the machine's own (it is a part of every glibc system, and GCC 12's asks for 2.35), programs
// start from glibc 2.34 on, which RHEL 9 has.
#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) std::abort();
  return value;
}
