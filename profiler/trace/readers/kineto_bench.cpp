// Prints how fast a Kineto trace is read, in MB of JSON per second of CPU time: kineto_bench FILE (plain or gzip).
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "profiler/trace/readers/gzip_stream.h"
#include "profiler/trace/readers/kineto.h"

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "kineto_bench FILE\n");
    return 64;
  }
  double bytes = 0;
  {
    auto file = mbb::profiler::GzipStream::open(argv[1]);
    std::vector<char> piece(1U << 20U);
    while (file) {
      const auto got = file->read(piece);
      if (!got || *got == 0) break;
      bytes += static_cast<double>(*got);
    }
  }
  std::vector<double> speeds;
  size_t events = 0;
  for (int round = 0; round < 5; ++round) {
    const double begin = cpu_seconds();
    const auto trace = mbb::profiler::read_kineto(argv[1]);
    if (!trace) {
      std::fprintf(stderr, "%s\n", format(trace.error()).c_str());
      return 4;
    }
    events = trace->events.size();
    speeds.push_back(bytes * 1e-6 / (cpu_seconds() - begin));
  }
  std::sort(speeds.begin(), speeds.end());
  std::printf("%.0f MB/s of JSON a core [%.0f, %.0f], %.1f MB, %zu events\n", speeds[2], speeds.front(), speeds.back(),
              bytes * 1e-6, events);
  return 0;
}
