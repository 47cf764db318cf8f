// Progress of a run: one line that is rewritten on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace mbb::suites {

class Progress {
 public:
  // `cells` are still to run. Writes to stderr unless quiet.
  Progress(size_t cells, bool quiet);
  ~Progress();

  // From here on time goes to `name`: to a cell anew, or again where cells take turns.
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
  std::map<std::string, int64_t> spent_ns_;  // by cell, before its present turn
};

}  // namespace mbb::suites
