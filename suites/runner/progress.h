// Progress of a run: one line that is rewritten on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace mbb::suites {

class Progress {
 public:
  // `cells` are still to run. Writes to stderr unless quiet.
  Progress(size_t cells, bool quiet);
  ~Progress();

  void begin_cell(const std::string& name);
  void step(int64_t done, int64_t of, double loss);
  void end_cell(const std::string& outcome);

 private:
  void draw(bool last);
  double fraction() const;

  size_t cells_, finished_ = 0;
  bool quiet_, terminal_;
  std::string name_;
  int64_t done_ = 0, of_ = 0;
  double loss_ = 0;
  int64_t started_ns_, drawn_ns_ = 0, cell_started_ns_ = 0;
};

}  // namespace mbb::suites
