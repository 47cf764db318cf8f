// Reads cost tables: every entry is known, and every entry is there.
#include "suites/project/cost_file.h"

#include <fmt/core.h>

#include <set>

#include "baselines/kernels/cost_files.h"
#include "profiler/base/text.h"
#include "suites/matrix/toml_file.h"
#include "suites/project/projector.h"

namespace mbb::suites {
namespace {

using trainer::CostTable;

// A table of the file; entries that nobody asked for are an error at the end.
class Section {
 public:
  Section(const TomlFile& file, const TomlNode& node, std::string name)
      : file_(file), node_(node), name_(std::move(name)) {}

  Result<const TomlNode*> entry(const char* key, TomlKind kind) {
    asked_.insert(key);
    const TomlNode* found = node_.find(key);
    if (found == nullptr) return file_.error(node_.at, fmt::format("{} lacks '{}'", name_, key));
    if (found->kind != kind)
      return file_.error(found->at, fmt::format("'{}' must be {}, not {}", key, mbb::suites::name(kind),
                                                mbb::suites::name(found->kind)));
    return found;
  }

  Status number(const char* key, double& out, double least = 0) {
    asked_.insert(key);
    const TomlNode* found = node_.find(key);
    if (found == nullptr) return file_.error(node_.at, fmt::format("{} lacks '{}'", name_, key));
    return number_at(*found, key, out, least);
  }

  Status text(const char* key, std::string& out) {
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kString));
    out = found->text;
    return {};
  }

  Status flag(const char* key, bool& out) {
    asked_.insert(key);
    if (node_.find(key) == nullptr) return {};
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kBoolean));
    out = found->flag;
    return {};
  }

  Result<Section> table(const char* key) {
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kTable));
    return Section(file_, *found, fmt::format("[{}]", key));
  }

  // Rows of `width` numbers, all above 0.
  Result<std::vector<std::vector<double>>> rows(const char* key, size_t width) {
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kArray));
    std::vector<std::vector<double>> all;
    for (const TomlNode& row : found->items) {
      MB_ASSIGN(std::vector<double> values, row_at(row, key, width));
      all.push_back(std::move(values));
    }
    if (all.empty()) return file_.error(found->at, fmt::format("'{}' is empty", key));
    return all;
  }

  Result<std::vector<double>> row(const char* key, size_t width) {
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kArray));
    return row_at(*found, key, width);
  }

  // Tables in a list.
  Result<std::vector<Section>> tables(const char* key) {
    MB_ASSIGN(const TomlNode* found, entry(key, TomlKind::kArray));
    std::vector<Section> all;
    for (const TomlNode& item : found->items) {
      if (item.kind != TomlKind::kTable) return file_.error(item.at, fmt::format("'{}' holds tables", key));
      all.emplace_back(file_, item, fmt::format("[[{}]]", key));
    }
    return all;
  }

  // Every entry as a name and a number.
  Result<std::vector<trainer::KernelShare>> shares() {
    std::vector<trainer::KernelShare> all;
    for (const TomlNode& item : node_.items) {
      trainer::KernelShare share{item.key, 0};
      MB_TRY(number_at(item, item.key.c_str(), share.share, 1e-3));
      all.push_back(std::move(share));
    }
    return all;
  }

  Status no_others() const {
    for (const TomlNode& item : node_.items)
      if (!asked_.contains(item.key))
        return file_.error(item.key_at, fmt::format("{} has no '{}'", name_, printable(item.key)));
    return {};
  }

 private:
  Status number_at(const TomlNode& node, const char* key, double& out, double least) const {
    if (node.kind != TomlKind::kNumber && node.kind != TomlKind::kInteger)
      return file_.error(node.at, fmt::format("'{}' must be a number, not {}", key, mbb::suites::name(node.kind)));
    out = node.kind == TomlKind::kNumber ? node.number : static_cast<double>(node.integer);
    if (!(out >= least)) return file_.error(node.at, fmt::format("'{}' = {} must be at least {}", key, out, least));
    return {};
  }

  Result<std::vector<double>> row_at(const TomlNode& row, const char* key, size_t width) const {
    if (row.kind != TomlKind::kArray || row.items.size() != width)
      return file_.error(row.at, fmt::format("'{}' has rows of {} numbers", key, width));
    std::vector<double> values(width);
    for (size_t i = 0; i < width; ++i) MB_TRY(number_at(row.items[i], key, values[i], 1e-3));
    return values;
  }

  const TomlFile& file_;
  const TomlNode& node_;
  std::string name_;
  std::set<std::string> asked_;
};

Status read_terms(Section section, CostTable& table) {
  for (size_t t = 0; t < trainer::kCostTerms; ++t) {
    MB_ASSIGN(Section term, section.table(trainer::name(static_cast<trainer::CostTerm>(t))));
    trainer::TermFacts& facts = table.terms[t];
    MB_TRY(term.number("factor", facts.factor, 1e-3));
    MB_TRY(term.flag("fitted", facts.fitted));
    MB_TRY(term.number("sigma", facts.sigma));
    MB_TRY(term.text("source", facts.source));
    MB_TRY(term.no_others());
  }
  return section.no_others();
}

Status read_kernel(Section section, CostTable& table) {
  double sms = 0;
  MB_TRY(section.number("copy_gb_s", table.copy_gb_s, 1));
  MB_TRY(section.number("other_share", table.other_share, 1e-3));
  MB_TRY(section.number("other_tflops", table.other_tflops, 1e-3));
  MB_TRY(section.number("kernel_us", table.kernel_us));
  MB_TRY(section.number("issue_us", table.issue_us));
  MB_TRY(section.number("sms", sms, 1));
  table.sms = static_cast<int>(sms);
  MB_ASSIGN(Section shares, section.table("shares"));
  MB_ASSIGN(table.kernel_shares, shares.shares());
  return section.no_others();
}

Status read_network(Section section, CostTable& table) {
  double domain = 0;
  MB_TRY(section.number("domain", domain, 1));
  table.domain = static_cast<int>(domain);
  const std::pair<const char*, trainer::BusBandwidth*> buses[] = {{"all_gather", &table.all_gather},
                                                                  {"reduce_scatter", &table.reduce_scatter},
                                                                  {"all_reduce", &table.all_reduce},
                                                                  {"all_to_all", &table.all_to_all},
                                                                  {"point_to_point", &table.point_to_point}};
  for (const auto& [key, bus] : buses) {
    MB_ASSIGN(const std::vector<double> row, section.row(key, 3));
    *bus = {row[0], row[1], row[2], 1};
  }
  MB_TRY(section.number("nvlink_us", table.nvlink_us));
  MB_TRY(section.number("nic_gb_s", table.nic_gb_s, 1e-3));
  MB_TRY(section.number("network_us", table.network_us));
  MB_TRY(section.number("hop_us", table.hop_us));
  MB_TRY(section.number("scale_loss", table.scale_loss));
  return section.no_others();
}

Status read_beside(Section section, CostTable& table) {
  const std::pair<const char*, trainer::BusBandwidth*> buses[] = {{"all_gather", &table.all_gather},
                                                                  {"reduce_scatter", &table.reduce_scatter},
                                                                  {"all_reduce", &table.all_reduce},
                                                                  {"all_to_all", &table.all_to_all},
                                                                  {"point_to_point", &table.point_to_point}};
  for (const auto& [key, bus] : buses) MB_TRY(section.number(key, bus->beside, 1));
  return section.no_others();
}

Status read_errors(Section section, trainer::StepErrors& errors) {
  double rows = 0;
  MB_TRY(section.number("rows", rows));
  errors.rows = static_cast<int>(rows);
  MB_TRY(section.number("median", errors.median));
  MB_TRY(section.number("p90", errors.p90));
  MB_TRY(section.number("coverage", errors.coverage));
  return section.no_others();
}

Status read_published(Section section, trainer::PublishedAccuracy& published) {
  double rows = 0, models = 0;
  MB_TRY(section.number("tp_hidden", published.tp_hidden));
  MB_TRY(section.number("older_loss", published.older_loss));
  MB_TRY(section.number("rows", rows));
  MB_TRY(section.number("models", models));
  published.rows = static_cast<int>(rows);
  published.models = static_cast<int>(models);
  MB_TRY(section.number("median", published.median));
  MB_TRY(section.number("p90", published.p90));
  MB_TRY(section.number("coverage", published.coverage));
  MB_TRY(section.number("unseen_median", published.unseen_median));
  MB_TRY(section.number("unseen_p90", published.unseen_p90));
  MB_TRY(section.number("unseen_coverage", published.unseen_coverage));
  MB_TRY(section.number("ratio_error", published.ratio_error));
  const std::pair<const char*, trainer::StepErrors*> families[] = {{"dense", &published.dense},
                                                                   {"experts", &published.experts},
                                                                   {"dense_assumed", &published.dense_assumed},
                                                                   {"experts_assumed", &published.experts_assumed},
                                                                   {"ours", &published.ours}};
  for (const auto& [key, to] : families) {
    MB_ASSIGN(Section family, section.table(key));
    MB_TRY(read_errors(std::move(family), *to));
  }
  return section.no_others();
}

Status read_step(Section section, trainer::MeasuredStep& step) {
  MB_TRY(section.text("model", step.model));
  MB_TRY(section.text("recipe", step.recipe));
  const std::pair<const char*, int64_t*> counts[] = {{"layers", &step.layers},
                                                     {"sequence", &step.sequence},
                                                     {"micro_batch", &step.micro_batch},
                                                     {"micro_batches", &step.micro_batches}};
  for (const auto& [key, to] : counts) {
    double value = 0;
    MB_TRY(section.number(key, value, 1));
    *to = static_cast<int64_t>(value);
  }
  MB_TRY(section.number("ms", step.ms, 1e-3));
  return section.no_others();
}

Status read_points(Section section, trainer::GemmPoints& points) {
  constexpr const char* kForms[trainer::kGemmForms] = {"fprop", "dgrad", "wgrad", "wgrad_accumulate"};
  for (size_t form = 0; form < trainer::kGemmForms; ++form) {
    MB_ASSIGN(const auto rows, section.rows(kForms[form], 4));
    for (const std::vector<double>& row : rows) points[form].push_back({row[0], row[1], row[2], row[3]});
  }
  return section.no_others();
}

Status read_products(Section section, CostTable& table) {
  MB_TRY(section.number("blocks_rate", table.blocks_rate, 1e-3));
  MB_TRY(section.number("grouped_wgrad_fp8", table.grouped_wgrad_fp8, 1e-3));
  MB_TRY(section.number("grouped_wgrad_blocks", table.grouped_wgrad_blocks, 1e-3));
  MB_TRY(section.number("uneven_rows", table.uneven_rows));
  MB_ASSIGN(Section bf16, section.table("bf16"));
  MB_TRY(read_points(std::move(bf16), table.bf16));
  MB_ASSIGN(Section fp8, section.table("fp8"));
  MB_TRY(read_points(std::move(fp8), table.fp8));
  return section.no_others();
}

// Another card at the shares of peak that this one's ops reach.
void scale_to(CostTable& table, const trainer::Hardware& from, const trainer::Hardware& to) {
  const auto scale = [](trainer::GemmPoints& points, double by) {
    for (auto& form : points)
      for (trainer::GemmPoint& p : form) p.tflops *= by;
  };
  const double bf16 = to.bf16_tflops / from.bf16_tflops;
  scale(table.bf16, bf16);
  if (to.fp8_tflops > 0)
    scale(table.fp8, to.fp8_tflops / from.fp8_tflops);
  else
    table.fp8 = {};
  for (auto* rates : {&table.attention_forward, &table.attention_backward})
    for (trainer::AttentionRate& r : *rates) r.tflops *= bf16;
  table.copy_gb_s *= to.memory_bytes_per_s / from.memory_bytes_per_s;
  const double link = to.nvlink_bytes_per_s / from.nvlink_bytes_per_s;
  for (trainer::BusBandwidth* bus :
       {&table.all_gather, &table.reduce_scatter, &table.all_reduce, &table.all_to_all, &table.point_to_point})
    bus->pair *= link, bus->many *= link, bus->cta *= link;
  table.domain = to.nvlink_domain_size;
  if (to.sm_count > 0) table.sms = to.sm_count;
  table.hardware = to.key;
  table.measured = false;
  // What another trainer hides is taken over; errors are not.
  table.published = {.tp_hidden = table.published.tp_hidden};
  table.steps.clear();
  for (trainer::TermFacts& term : table.terms) {
    term.sigma = std::max(term.sigma, 0.2);
    term.fitted = false;
    term.source = fmt::format("the vendor's ceilings of {}, at the share of them that {} reaches", to.key, from.key);
  }
}

}  // namespace

Result<CostTable> parse_costs(std::string text, const std::string& path) {
  MB_ASSIGN(const TomlFile file, parse_toml(std::move(text), path));
  CostTable table;
  Section root(file, file.root, "the cost table");
  MB_TRY(root.text("hardware", table.hardware));
  MB_TRY(root.text("date", table.date));
  MB_TRY(root.flag("measured", table.measured));
  MB_TRY(root.number("model_sigma", table.model_sigma));
  MB_ASSIGN(Section terms, root.table("terms"));
  MB_TRY(read_terms(std::move(terms), table));
  MB_ASSIGN(Section kernel, root.table("kernel"));
  MB_TRY(read_kernel(std::move(kernel), table));
  MB_ASSIGN(Section network, root.table("network"));
  MB_TRY(read_network(std::move(network), table));
  MB_ASSIGN(Section beside, root.table("beside"));
  MB_TRY(read_beside(std::move(beside), table));
  MB_ASSIGN(Section products, root.table("gemm"));
  MB_TRY(read_products(std::move(products), table));
  MB_ASSIGN(Section published, root.table("published"));
  MB_TRY(read_published(std::move(published), table.published));
  MB_ASSIGN(const std::vector<Section> steps, root.tables("step"));
  for (const Section& step : steps) MB_TRY(read_step(step, table.steps.emplace_back()));
  MB_ASSIGN(Section attention, root.table("attention"));
  for (const auto& [key, rates] :
       {std::pair{"forward", &table.attention_forward}, std::pair{"backward", &table.attention_backward}}) {
    MB_ASSIGN(const auto rows, attention.rows(key, 4));
    for (const std::vector<double>& row : rows) rates->push_back({row[0], row[1], row[2], row[3]});
  }
  MB_ASSIGN(const std::vector<double> packed, attention.row("packed", 2));
  table.packed_forward = packed[0];
  table.packed_backward = packed[1];
  MB_TRY(attention.no_others());
  MB_TRY(root.no_others());
  return table;
}

Result<CostTable> find_costs(const std::string& hardware) {
  MB_ASSIGN(const trainer::Hardware wanted, trainer::find_hardware(hardware));
  const baselines::CostFile* measured = nullptr;
  for (const baselines::CostFile& file : baselines::cost_files()) {
    if (file.hardware == wanted.key) return parse_costs(std::string(*file.text), std::string(file.path));
    if (file.hardware == kDefaultHardware) measured = &file;
  }
  MB_CHECK(measured != nullptr, "the card that others are scaled from has a table");
  MB_ASSIGN(CostTable table, parse_costs(std::string(*measured->text), std::string(measured->path)));
  MB_ASSIGN(const trainer::Hardware from, trainer::find_hardware(kDefaultHardware));
  scale_to(table, from, wanted);
  return table;
}

}  // namespace mbb::suites
