// Published steps beside projected ones; robust least squares on how the steps move with the fitted factors.
#include "suites/project/accuracy.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "suites/project/published_config.h"
#include "trainer/models/transformer.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

using baselines::PublishedRow;
using trainer::CostTable;

// "h100-sxm" is "H100" in published tables.
std::string published_name(const std::string& hardware) {
  std::string name = hardware.substr(0, hardware.find('-'));
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

bool same_but_scale(const PublishedRow& a, const PublishedRow& b) {
  return a.source == b.source && a.release == b.release && a.model_id == b.model_id && a.precision == b.precision &&
         a.tp == b.tp && a.pp == b.pp && a.cp == b.cp && a.vpp == b.vpp && a.ep == b.ep && a.sharding == b.sharding &&
         a.global_batch * b.gpus == b.global_batch * a.gpus;
}

// Why a row that could be built is not among the cases; empty when it is.
std::string left_out(const PublishedRow& row, const std::vector<const PublishedRow*>& usable) {
  const auto model = trainer::find_model(row.model_id);
  bool smaller = false, larger = false;
  for (const PublishedRow* one : usable) {
    const PublishedRow& other = *one;
    if (model && model->is_moe() && other.model_id == row.model_id &&
        std::pair(other.date, other.release) > std::pair(row.date, row.release))
      return "a newer release of a model with experts";
    if (!same_but_scale(row, other)) continue;
    smaller = smaller || other.gpus < row.gpus;
    larger = larger || other.gpus > row.gpus;
  }
  return smaller && larger ? "inside a series that differs in the number of GPUs alone" : "";
}

Result<PublishedCase> build_case(const PublishedRow& row, const trainer::Config& config) {
  PublishedCase out;
  out.row = row;
  MB_ASSIGN(out.layout, trainer::resolve(config));
  out.experts = out.layout.model.is_moe();
  for (int c = 0; c < out.layout.mesh.rank_class_count(); ++c)
    out.programs.programs.push_back(
        trainer::build_program(out.layout, out.layout.mesh.rank_class(out.layout.mesh.representative(c))));
  out.published_ns = static_cast<double>(out.layout.tokens_per_step()) /
                     (row.tokens_per_s_per_gpu * static_cast<double>(row.gpus)) * 1e9;
  return out;
}

Result<Projection> project_case(const PublishedCase& of, const CostTable& costs, bool parts,
                                Assume assume = Assume::kOtherTrainer) {
  const bool theirs = assume == Assume::kOtherTrainer && !of.ours();
  ProjectOptions options;
  options.parts = parts;
  if (theirs && overlaps_tensor_parallel(of.row)) {
    options.assume_tp_hidden = costs.published.tp_hidden;
    options.assume_fp8_gather = of.row.precision.starts_with("fp8");
  }
  MB_ASSIGN(Projection out, project(of.layout, of.programs, costs, options));
  if (theirs && of.row.date < "2025")
    for (double* ns : {&out.step_ns, &out.low_ns, &out.high_ns}) *ns *= 1 + costs.published.older_loss;
  return out;
}

// One value of the fit: where it lies, how far it may go, how it is changed.
struct Fitted {
  std::string name;
  bool logarithm = true;  // moves as a factor
  double sigma = 0.1;     // of the value before the fit (of its logarithm)
  double least = 0, most = 1e9;
};

std::vector<Fitted> fitted(const CostTable& costs) {
  std::vector<Fitted> all;
  for (size_t t = 0; t < trainer::kCostTerms; ++t)
    if (costs.terms[t].fitted)
      all.push_back({std::string("factor of ") + trainer::name(static_cast<trainer::CostTerm>(t)), true,
                     std::max(0.03, costs.terms[t].sigma), 0.3, 3});
  all.push_back({"tp_hidden", false, 0.15, 0, 0.98});
  all.push_back({"older_loss", false, 0.1, 0, 0.5});
  all.push_back({"scale_loss", false, 0.004, 0, 0.03});
  return all;
}

// Solves A·x = b for a small symmetric positive definite A, by elimination.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n; ++j) {
      const double f = a[j][i] / a[i][i];
      for (size_t k = i; k < n; ++k) a[j][k] -= f * a[i][k];
      b[j] -= f * b[i];
    }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// The step of each case (its logarithm) around the values it was made at.
struct Linear {
  std::vector<double> at;                  // log(projected / published)
  std::vector<std::vector<double>> slope;  // [case][value], of the value's logarithm where it moves as a factor
};

double moved(const Fitted& value, double from, double by) {
  const double to = value.logarithm ? from * std::exp(by) : from + by;
  return std::clamp(to, value.least, value.most);
}

double log_error(const PublishedCase& of, const CostTable& costs) {
  const auto projected = project_case(of, costs, false);
  MB_CHECK(projected.has_value(), projected ? "" : projected.error().what);
  return std::log(projected->step_ns / of.published_ns);
}

Linear linearize(const std::vector<PublishedCase>& cases, const CostTable& costs) {
  const std::vector<Fitted> values = fitted(costs);
  const std::vector<double> at = fitted_values(costs);
  Linear out;
  for (const PublishedCase& of : cases) {
    out.at.push_back(log_error(of, costs));
    std::vector<double>& slope = out.slope.emplace_back();
    for (size_t v = 0; v < values.size(); ++v) {
      const double by = values[v].logarithm ? 0.05 : at[v] > values[v].most / 2 ? -values[v].sigma : values[v].sigma;
      CostTable other = costs;
      std::vector<double> to = at;
      to[v] = moved(values[v], at[v], by);
      set_fitted_values(other, to);
      const double distance = values[v].logarithm ? std::log(to[v] / at[v]) : to[v] - at[v];
      slope.push_back((log_error(of, other) - out.at.back()) / distance);
    }
  }
  return out;
}

// Cases weigh so that every model counts alike.
std::vector<double> weights_of(const std::vector<PublishedCase>& cases, const std::string& without) {
  std::map<std::string, double> rows;
  for (const PublishedCase& of : cases) rows[of.row.model_id] += 1;
  std::vector<double> weights;
  for (const PublishedCase& of : cases) weights.push_back(of.row.model_id == without ? 0 : 1 / rows[of.row.model_id]);
  return weights;
}

// Where the fitted values go from `at`, given the steps around there. Iteratively reweighted least squares: absolute
// errors, each value pulled to where it was measured.
std::vector<double> fit(const Linear& steps, const std::vector<double>& weights, const std::vector<Fitted>& values,
                        const std::vector<double>& at, const std::vector<double>& measured) {
  constexpr double kTypical = 0.03;  // error of a row that one standard deviation of a value is worth
  std::vector<double> by(values.size(), 0);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::vector<double>> a(values.size(), std::vector<double>(values.size(), 0));
    std::vector<double> b(values.size(), 0);
    for (size_t i = 0; i < steps.at.size(); ++i) {
      double residual = steps.at[i];
      for (size_t v = 0; v < by.size(); ++v) residual += steps.slope[i][v] * by[v];
      const double w = weights[i] / std::max(0.004, std::abs(residual)) / kTypical;
      for (size_t v = 0; v < by.size(); ++v) {
        b[v] -= w * steps.slope[i][v] * steps.at[i];
        for (size_t u = 0; u < by.size(); ++u) a[v][u] += w * steps.slope[i][v] * steps.slope[i][u];
      }
    }
    for (size_t v = 0; v < by.size(); ++v) {
      const double pull = 0.25 / (values[v].sigma * values[v].sigma);
      const double off = values[v].logarithm ? std::log(measured[v] / at[v]) : measured[v] - at[v];
      a[v][v] += pull;
      b[v] += pull * off;
    }
    by = solve(std::move(a), std::move(b));
  }
  std::vector<double> to;
  for (size_t v = 0; v < by.size(); ++v) to.push_back(moved(values[v], at[v], by[v]));
  return to;
}

// What the table would say without a fit.
std::vector<double> before_fit(const CostTable& costs) {
  CostTable plain = costs;
  for (trainer::TermFacts& term : plain.terms) term.factor = 1;
  plain.published.tp_hidden = 0.8;
  plain.published.older_loss = 0.05;
  plain.scale_loss = 0.002;
  return fitted_values(plain);
}

}  // namespace

PublishedCases published_cases(const std::string& hardware) {
  PublishedCases out;
  const std::string name = published_name(hardware);
  const std::vector<PublishedRow>& rows = baselines::published_rows();
  std::vector<const PublishedRow*> usable;
  for (const PublishedRow& row : rows)
    if (row.hardware == name && published_config(row)) usable.push_back(&row);
  for (const PublishedRow& row : rows) {
    if (row.hardware != name) continue;
    std::string reason;
    if (const auto config = published_config(row); !config) reason = config.error().what;
    if (reason.empty()) reason = left_out(row, usable);
    if (reason.empty()) {
      Result<PublishedCase> built = build_case(row, *published_config(row));
      if (built)
        out.cases.push_back(std::move(*built));
      else
        reason = built.error().what;
    }
    if (!reason.empty()) out.left_out.emplace_back(row, std::move(reason));
  }
  return out;
}

Result<std::vector<PublishedCase>> measured_cases(const CostTable& costs) {
  std::vector<PublishedCase> cases;
  for (const trainer::MeasuredStep& step : costs.steps) {
    trainer::Config config;
    config.model.name = step.model;
    config.model.num_layers = step.layers;
    config.train.seq_length = step.sequence;
    config.train.micro_batch_size = step.micro_batch;
    config.train.global_batch_size = step.micro_batch * step.micro_batches;
    KnobSources sources;
    MB_TRY(trainer::knobs().set_text(config, sources, "precision.recipe", step.recipe, {}));
    config.parallel.use_distributed_optimizer = false;
    config.fusion.residual_fusion = config.fusion.cross_entropy_loss_fusion = true;
    PublishedRow row;
    row.release = "ours";
    row.model_id = step.model;
    row.precision = step.recipe;
    row.gpus = row.tp = row.pp = 1;
    row.tokens_per_s_per_gpu =
        static_cast<double>(step.sequence * step.micro_batch * step.micro_batches) / (step.ms * 1e-3);
    MB_ASSIGN(PublishedCase built, build_case(row, config));
    cases.push_back(std::move(built));
  }
  return cases;
}

Result<std::vector<CaseError>> errors_of(const std::vector<PublishedCase>& cases, const CostTable& costs,
                                         Assume assume) {
  std::vector<CaseError> errors;
  for (const PublishedCase& of : cases) {
    MB_ASSIGN(const Projection projected, project_case(of, costs, true, assume));
    errors.push_back({&of, projected.step_ns / of.published_ns - 1,
                      projected.low_ns <= of.published_ns && of.published_ns <= projected.high_ns, projected.step_ns,
                      projected.low_ns, projected.high_ns});
  }
  return errors;
}

Accuracy accuracy(const std::vector<CaseError>& errors) {
  Accuracy out;
  out.rows = errors.size();
  if (errors.empty()) return out;
  std::vector<double> sizes, values;
  for (const CaseError& e : errors) {
    sizes.push_back(std::abs(e.error));
    values.push_back(e.error);
    out.coverage += e.covered ? 1.0 / static_cast<double>(errors.size()) : 0;
  }
  std::sort(sizes.begin(), sizes.end());
  std::sort(values.begin(), values.end());
  const auto middle = [](const std::vector<double>& v) { return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2; };
  out.median = middle(sizes);
  out.bias = middle(values);
  out.p90 = sizes[static_cast<size_t>(std::ceil(0.9 * static_cast<double>(sizes.size()))) - 1];
  return out;
}

double ratio_error(const std::vector<CaseError>& errors) {
  std::vector<double> sizes;
  for (size_t i = 0; i < errors.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const PublishedRow &a = errors[i].of->row, &b = errors[j].of->row;
      if (a.model_id == b.model_id && a.release == b.release)
        sizes.push_back(std::abs(std::log((1 + errors[i].error) / (1 + errors[j].error))));
    }
  if (sizes.empty()) return 0;
  std::sort(sizes.begin(), sizes.end());
  return sizes[static_cast<size_t>(std::ceil(0.8 * static_cast<double>(sizes.size()))) - 1];
}

std::vector<double> fitted_values(const CostTable& costs) {
  std::vector<double> values;
  for (const trainer::TermFacts& term : costs.terms)
    if (term.fitted) values.push_back(term.factor);
  values.push_back(costs.published.tp_hidden);
  values.push_back(costs.published.older_loss);
  values.push_back(costs.scale_loss);
  return values;
}

void set_fitted_values(CostTable& costs, const std::vector<double>& values) {
  size_t at = 0;
  for (trainer::TermFacts& term : costs.terms)
    if (term.fitted) term.factor = values[at++];
  costs.published.tp_hidden = values[at++];
  costs.published.older_loss = values[at++];
  costs.scale_loss = values[at++];
}

std::vector<std::string> fitted_names(const CostTable& costs) {
  std::vector<std::string> names;
  for (const Fitted& value : fitted(costs)) names.push_back(value.name);
  return names;
}

CostTable calibrate(const std::vector<PublishedCase>& cases, CostTable costs) {
  const std::vector<double> measured = before_fit(costs);
  for (int round = 0; round < 3; ++round) {
    const Linear steps = linearize(cases, costs);
    set_fitted_values(costs, fit(steps, weights_of(cases, ""), fitted(costs), fitted_values(costs), measured));
  }
  return costs;
}

Result<std::vector<CaseError>> errors_left_out(const std::vector<PublishedCase>& cases, const CostTable& costs) {
  const Linear steps = linearize(cases, costs);
  const std::vector<double> measured = before_fit(costs);
  std::set<std::string> models;
  for (const PublishedCase& of : cases) models.insert(of.row.model_id);
  std::vector<CaseError> all;
  for (const std::string& model : models) {
    CostTable without = costs;
    set_fitted_values(without, fit(steps, weights_of(cases, model), fitted(costs), fitted_values(costs), measured));
    for (const PublishedCase& of : cases) {
      if (of.row.model_id != model || of.ours()) continue;
      MB_ASSIGN(const Projection projected, project_case(of, without, true));
      all.push_back({&of, projected.step_ns / of.published_ns - 1,
                     projected.low_ns <= of.published_ns && of.published_ns <= projected.high_ns, projected.step_ns,
                     projected.low_ns, projected.high_ns});
    }
  }
  return all;
}

}  // namespace mbb::suites
