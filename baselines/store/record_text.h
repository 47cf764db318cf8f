// Records as the text of bundle files: JSON for what people read, CSV for long tables.
//
// Readers take untrusted text: any bytes give a record or an error that names the field, never a crash. A field that is
// absent keeps its default, since fields are only ever added.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baselines/store/records.h"

namespace mbb::baselines {

// run.json: the run but for its cells, its format version, and a checksum over both.
std::string run_text(const Run& run, int version);
Result<Run> parse_run(std::string_view text, int known_version);

// config.json: what was asked. result.json: what came of it, without launches.
std::string cell_config_text(const Cell& cell);
std::string cell_result_text(const Cell& cell);
Result<Cell> parse_cell(std::string_view config, std::string_view result);

// launch.json: the launch but for its tables.
std::string launch_text(const Launch& launch);
Result<Launch> parse_launch(std::string_view text);

std::string memory_text(const std::vector<MemoryMap>& maps);
Result<std::vector<MemoryMap>> parse_memory(std::string_view text);

std::string steps_text(const std::vector<Step>& steps);
Result<std::vector<Step>> parse_steps(std::string_view text);

std::string ops_text(const std::vector<OpRow>& ops);
Result<std::vector<OpRow>> parse_ops(std::string_view text);

}  // namespace mbb::baselines
