// Finds suites by name: the user's folder first, then those shipped inside the program.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "profiler/base/text.h"
#include "suites/matrix/shipped_specs.h"
#include "suites/matrix/suite.h"

namespace mbb::suites {

Result<std::vector<SuiteEntry>> list_suites(const Settings& settings) {
  std::vector<SuiteEntry> entries;
  if (const std::string& folder = settings.product.suites_dir; !folder.empty()) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const std::filesystem::path& path = at->path();
      if (path.extension() == ".toml") entries.push_back({path.stem().string(), path.string(), "", false});
    }
    if (error) {
      const auto source = settings.product_sources.find("suites_dir");
      const std::string from = source == settings.product_sources.end() ? "" : describe(source->second) + ": ";
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}listing suites in {}: {}", from, printable(folder, 4096), error.message()),
                  "suites_dir names a folder of .toml files");
    }
  }
  std::sort(entries.begin(), entries.end(), [](const SuiteEntry& a, const SuiteEntry& b) { return a.name < b.name; });
  const size_t own = entries.size();
  for (const ShippedSpec& spec : shipped_specs()) {
    const auto same = [&](const SuiteEntry& entry) { return entry.name == spec.name; };
    if (std::any_of(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(own), same)) continue;
    entries.push_back(
        {std::string(spec.name), fmt::format("shipped/{}.toml", spec.name), std::string(spec.bytes), true});
  }
  return entries;
}

Result<TomlFile> find_basis(const std::string& name, const std::string& path, const Settings& settings) {
  std::vector<std::filesystem::path> folders{std::filesystem::path(path).parent_path()};
  if (!settings.product.suites_dir.empty()) folders.emplace_back(settings.product.suites_dir);
  const bool plain = name.find('/') == std::string::npos;
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path file = folder / "basis" / (name + ".toml");
    std::error_code ignored;
    if (plain && std::filesystem::is_regular_file(file, ignored)) return read_toml(file.string());
  }
  std::vector<std::string> names;
  for (const ShippedSpec& basis : shipped_bases()) {
    if (basis.name == name) return parse_toml(std::string(basis.bytes), fmt::format("shipped/basis/{}.toml", name));
    names.emplace_back(basis.name);
  }
  const auto near = nearest(name, names);
  return fail(ErrorCode::kNotFound, fmt::format("no basis is called '{}'", printable(name)),
              near ? fmt::format("did you mean '{}'?", *near) : "shipped are " + join(names, ", "));
}

Result<Suite> open_suite(const std::string& name_or_file, const Settings& settings, const SuiteFilter& filter,
                         const Resolves& resolves) {
  if (name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".toml"))
    return load_suite(name_or_file, settings, filter, resolves);
  MB_ASSIGN(const std::vector<SuiteEntry> entries, list_suites(settings));
  std::vector<std::string> names;
  for (const SuiteEntry& entry : entries) {
    if (entry.name == name_or_file)
      return entry.shipped ? parse_suite(entry.bytes, entry.path, settings, filter, resolves)
                           : load_suite(entry.path, settings, filter, resolves);
    names.push_back(entry.name);
  }
  const auto near = nearest(name_or_file, names);
  return fail(ErrorCode::kBadArgument, fmt::format("no suite is called '{}'", printable(name_or_file)),
              near ? fmt::format("did you mean '{}'?", *near)
                   : "`mbbench list suites` lists them; a file needs a '/' or .toml");
}

}  // namespace mbb::suites
