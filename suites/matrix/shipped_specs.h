// The suite files of suites/specs as bytes inside the program, written at build time from that folder.
#pragma once

#include <span>
#include <string_view>

namespace mbb::suites {

struct ShippedSpec {
  std::string_view name;  // file name without .toml
  std::string_view bytes;
};

// Sorted by name.
std::span<const ShippedSpec> shipped_specs();
// The tables suites are based on, of suites/specs/basis.
std::span<const ShippedSpec> shipped_bases();

}  // namespace mbb::suites
