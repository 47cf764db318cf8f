// A product of matrices that stay in the first cache: of one step's kinds of work the one whose time moves as the
// step's.
#include "trainer/execute/cpu/reference_work.h"

#include <array>

#include "profiler/base/clock.h"

namespace mbb::trainer {
namespace {

constexpr int kSize = 64;
constexpr int kProducts = 10;

struct alignas(64) Matrices {  // where the thread's storage begins moves with each link
  std::array<float, kSize * kSize> a{}, b{}, c{};
  Matrices() {
    a.fill(0.5F);
    b.fill(0.25F);
  }
};

void add_product(Matrices& m) {
  for (int i = 0; i < kSize; ++i)
    for (int k = 0; k < kSize; ++k)
      for (int j = 0; j < kSize; ++j) m.c[i * kSize + j] += m.a[i * kSize + k] * m.b[k * kSize + j];
}

}  // namespace

int64_t reference_work_ns() {
  thread_local Matrices matrices;
  const int64_t began = thread_cpu_ns();
  matrices.c.fill(0.0F);
  for (int i = 0; i < kProducts; ++i) add_product(matrices);
  volatile float kept = matrices.c[kSize];  // so that the work is done
  (void)kept;
  return thread_cpu_ns() - began;
}

}  // namespace mbb::trainer
