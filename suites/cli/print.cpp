// Text, Markdown or JSON lines.
#include "suites/cli/print.h"

#include <fmt/core.h>
#include <unistd.h>

#include "trainer/comm/process_place.h"

namespace mbb::suites {

void print_tables(const Parsed& parsed, const std::vector<analysis::Table>& tables) {
  const analysis::TextStyle style = analysis::style_for_terminal(trainer::terminal_is_seen(STDOUT_FILENO));
  for (size_t i = 0; i < tables.size(); ++i) {
    if (parsed.flag("--json")) {
      fmt::print("{}", analysis::to_json(tables[i]));
    } else if (parsed.flag("--markdown")) {
      fmt::print("{}{}", i ? "\n" : "", analysis::to_markdown(tables[i]));
    } else {
      fmt::print("{}{}", i ? "\n" : "", analysis::to_text(tables[i], style));
    }
  }
}

}  // namespace mbb::suites
