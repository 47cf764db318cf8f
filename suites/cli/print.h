// Tables on stdout, in the form the command line asks for.
#pragma once

#include "analysis/report/table.h"
#include "suites/cli/command.h"

namespace mbb::suites {

inline constexpr OptionSpec kJsonOption{"--json", nullptr, "one JSON object a table, for machines"};
inline constexpr OptionSpec kMarkdownOption{"--markdown", nullptr, "Markdown tables"};

void print_tables(const Parsed& parsed, const std::vector<analysis::Table>& tables);

}  // namespace mbb::suites
