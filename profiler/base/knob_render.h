// The list of knobs for people and machines: text, JSON, and the Markdown reference page.
#pragma once

#include <string>

#include "profiler/base/knob_table.h"

namespace mbb {

std::string render_knobs_text(const KnobTable& table);
std::string render_knobs_json(const KnobTable& table);  // an array, one object a knob
std::string render_knobs_markdown(const KnobTable& table, const std::string& title);

// Every value and where it came from, defaults last on the line: what `mbbench config --origin` prints.
std::string render_origins_text(const KnobTable& table, ConstConfigRef config, const KnobSources& sources);

}  // namespace mbb
