// The per-site table of tp_comm_overlap_cfg: defaults as Transformer Engine's users know them, and the rules of
// entries.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "trainer/passes/tp_overlap.h"

namespace mbb::trainer {
namespace {

using Method = TpOverlapMethod;
constexpr const char* kCfg = "overlap.tp_comm_overlap_cfg";

struct SiteRule {
  const char* name;
  Method method;  // default
  bool bulk;      // there is a product beside the collective that does not need it
  bool split;     // the collective feeds the product, or the product it
  bool scatters;  // the collective that is split is a reduce-scatter
};
constexpr std::array kSites{
    SiteRule{"qkv_fprop", Method::kRingExchange, false, true, false},
    SiteRule{"qkv_dgrad", Method::kBulk, true, true, true},
    SiteRule{"qkv_wgrad", Method::kBulk, true, false, false},
    SiteRule{"proj_fprop", Method::kPipeline, false, true, true},
    SiteRule{"proj_dgrad", Method::kRingExchange, false, true, false},
    SiteRule{"fc1_fprop", Method::kRingExchange, false, true, false},
    SiteRule{"fc1_dgrad", Method::kBulk, true, true, true},
    SiteRule{"fc1_wgrad", Method::kBulk, true, false, false},
    SiteRule{"fc2_fprop", Method::kPipeline, false, true, true},
    SiteRule{"fc2_dgrad", Method::kRingExchange, false, true, false},
};

struct MethodName {
  Method method;
  const char* name;
};
constexpr std::array kMethods{MethodName{Method::kNone, "none"}, MethodName{Method::kBulk, "bulk"},
                              MethodName{Method::kPipeline, "pipeline"},
                              MethodName{Method::kRingExchange, "ring_exchange"}};

tl::unexpected<Error> bad(const std::string& entry, const std::string& what, const std::string& hint) {
  return fail(ErrorCode::kBadArgument, fmt::format("{}.{}: {}", kCfg, entry, what), hint);
}

Result<int> whole(const std::string& entry, const std::string& text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least) return value;
  return bad(entry, fmt::format("'{}' is not a number of at least {}", text, least), "give a whole number");
}

Result<bool> flag(const std::string& entry, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return bad(entry, fmt::format("'{}' is neither true nor false", text), "give true or false");
}

std::string known_sites() {
  std::string text;
  for (const SiteRule& rule : kSites) text += (text.empty() ? "" : ", ") + std::string(rule.name);
  return text;
}

Result<Method> method_named(const std::string& entry, const std::string& text) {
  for (const MethodName& known : kMethods)
    if (text == known.name) return known.method;
  return bad(entry, fmt::format("no method '{}'", text), "give bulk, pipeline, ring_exchange or none");
}

bool fits(Method method, const SiteRule& rule) {
  return method == Method::kNone || (method == Method::kBulk ? rule.bulk : rule.split);
}

Status check_fits(const std::string& entry, Method method, const SiteRule& rule) {
  if (fits(method, rule)) return {};
  return method == Method::kBulk
             ? bad(entry, "no product beside its collective is independent of it, so it cannot be bulk",
                   "give pipeline, ring_exchange or none")
             : bad(entry, "its collective stays whole: it runs beside a product that does not need it",
                   "give bulk or none");
}

// Which fields an entry gave; the rest follow the method.
struct Given {
  std::optional<Method> method;
  std::optional<int> num_sm, cga_size, num_splits;
  std::optional<bool> fp8_buf, set_sm_margin, use_ce;
};

Status read_entry(const std::string& entry, const std::string& field, const std::string& value, Given& given) {
  if (field == "method") {
    MB_ASSIGN(given.method, method_named(entry, value));
  } else if (field == "num_sm") {
    MB_ASSIGN(given.num_sm, whole(entry, value, 1));
  } else if (field == "cga_size") {
    MB_ASSIGN(given.cga_size, whole(entry, value, 1));
  } else if (field == "num_splits") {
    MB_ASSIGN(given.num_splits, whole(entry, value, 1));
  } else if (field == "fp8_buf") {
    MB_ASSIGN(given.fp8_buf, flag(entry, value));
  } else if (field == "set_sm_margin") {
    MB_ASSIGN(given.set_sm_margin, flag(entry, value));
  } else if (field == "use_ce") {
    MB_ASSIGN(given.use_ce, flag(entry, value));
  } else {
    return bad(entry, "no such field", "give method, num_sm, cga_size, num_splits, fp8_buf, set_sm_margin or use_ce");
  }
  return {};
}

// What a layer part's entry says to one of its sites, whose own entries go before.
void take_from_part(const Given& part, const SiteRule& rule, Given& site) {
  if (part.method && (!fits(*part.method, rule) || site.method.value_or(*part.method) != *part.method)) return;
  const auto take = [](auto& own, const auto& of_part) {
    if (!own) own = of_part;
  };
  take(site.method, part.method);
  take(site.num_sm, part.num_sm);
  take(site.cga_size, part.cga_size);
  take(site.num_splits, part.num_splits);
  take(site.set_sm_margin, part.set_sm_margin);
  take(site.use_ce, part.use_ce);
  if (rule.scatters) take(site.fp8_buf, part.fp8_buf);
}

bool is_of_part(const SiteRule& rule, std::string_view part) {
  const std::string_view name = rule.name;
  return name.substr(0, name.find('_')) == part;
}

// Of a sequence's rows where no number is given; 4, which the rule then refuses, where nothing up to 4 divides them.
int usual_splits(RowsOfARank rows) {
  const int64_t both = std::gcd(rows.decoder, rows.encoder);
  for (const int splits : {4, 3, 2})
    if (both % splits == 0) return splits;
  return 4;
}

Result<TpOverlapSite> site_of(const SiteRule& rule, const Given& given, int tp, RowsOfARank rows,
                              const TpOverlapRecipe& recipe) {
  const Method usual = recipe.quantizes && rule.method != Method::kBulk ? Method::kNone : rule.method;
  TpOverlapSite site{rule.name, given.method.value_or(usual)};
  const bool ring = site.method == Method::kRingExchange;
  // A ring moves one part at a time: two CTAs were too slow for it beside products (two H200s), and past four products
  // lose more than messages win, by projection.
  site.num_sm = given.num_sm.value_or(ring ? 4 : 16);
  site.cga_size = given.cga_size.value_or(std::min(2, site.num_sm));
  site.num_splits = given.num_splits.value_or(ring ? tp : usual_splits(rows));
  site.fp8_buf = given.fp8_buf.value_or(false);
  // Who says how many SMs a ring takes wants it on SMs.
  site.use_ce = given.use_ce.value_or(ring && !given.num_sm && !given.cga_size && !given.set_sm_margin);
  // Products take every SM until they end: a collective that finds none begins when it should be over. Copy engines
  // need none.
  const bool whole_quantized = recipe.quantizes && site.method == Method::kBulk;
  site.set_sm_margin = given.set_sm_margin.value_or(!whole_quantized && !site.use_ce);
  const auto refuse = [&](const char* field, const std::string& what, const std::string& hint) {
    return bad(fmt::format("{}.{}", rule.name, field), what, hint);
  };
  if (site.method == Method::kNone) {
    if (!given.num_sm && !given.cga_size && !given.num_splits && !given.fp8_buf && !given.set_sm_margin &&
        !given.use_ce)
      return site;
    return refuse("method", "none, and another field of the site is given, which nothing reads",
                  "give a method, or leave the field out");
  }
  if (!recipe.splits && site.method != Method::kBulk)
    return refuse("method",
                  fmt::format("{} splits a product, and precision.recipe = {} gives each block of its operands a "
                              "scale: products of some rows are of operands with one scale",
                              name(site.method), recipe.name),
                  "give bulk or none, or precision.recipe = fp8_current, fp8_delayed or bf16");
  if (whole_quantized && site.set_sm_margin)
    return refuse("set_sm_margin", "whole products that precision.recipe quantizes take all SMs", "leave it out");
  if (site.use_ce && !ring)
    return refuse("use_ce", fmt::format("{} adds or gathers, which takes SMs", name(site.method)),
                  "give ring_exchange, whose messages copy engines can move, or leave it out");
  if (site.use_ce && (given.num_sm || given.cga_size || given.set_sm_margin.value_or(false)))
    return refuse("use_ce", "copy engines take no SMs, and some are given", "leave out use_ce, or the SMs");
  if (site.cga_size > 4 || site.cga_size > site.num_sm)
    return refuse("cga_size", fmt::format("{} is above 4 or above num_sm = {}", site.cga_size, site.num_sm),
                  "a cluster has at most 4 thread blocks, one an SM");
  if (ring && site.num_splits != tp)
    return refuse("num_splits", fmt::format("a ring of {} ranks has {} steps, not {}", tp, tp, site.num_splits),
                  "leave it out");
  for (const auto& [held, whose] : {std::pair{rows.decoder, "sequence"}, {rows.encoder, "encoder's sequence"}})
    if (site.method == Method::kPipeline && held % site.num_splits != 0)
      return refuse(
          "num_splits",
          fmt::format("{} does not divide the {} rows of the {} that a rank holds", site.num_splits, held, whose),
          "choose a divisor, or method = ring_exchange or none");
  if (site.fp8_buf && !(ring && rule.scatters))
    return refuse("fp8_buf", "only the parts of a reduce-scatter with method = ring_exchange can travel in FP8",
                  "sums are never taken in FP8: give ring_exchange, or fp8_buf = false");
  return site;
}

}  // namespace

const char* name(TpOverlapMethod method) {
  return kMethods[static_cast<size_t>(method)].name;
}

namespace {

// What entries of its own and of its layer part say to each site.
Result<std::array<Given, kSites.size()>> given_of(const KnobMap& cfg) {
  std::array<Given, kSites.size()> given;
  std::map<std::string, Given> parts;
  for (const auto& [entry, value] : cfg) {
    const size_t dot = entry.find('.');
    const std::string name = entry.substr(0, dot);
    const auto rule = std::find_if(kSites.begin(), kSites.end(), [&](const SiteRule& r) { return name == r.name; });
    const bool part = std::any_of(kSites.begin(), kSites.end(), [&](const SiteRule& r) { return is_of_part(r, name); });
    if ((rule == kSites.end() && !part) || dot == std::string::npos)
      return bad(entry, "no such site",
                 fmt::format("sites are {}; qkv, proj, fc1 and fc2 stand for all of theirs", known_sites()));
    Given& to = part ? parts[name] : given[static_cast<size_t>(rule - kSites.begin())];
    MB_TRY(read_entry(entry, entry.substr(dot + 1), value, to));
    if (!part && to.method) MB_TRY(check_fits(entry, *to.method, *rule));
  }
  for (const auto& [name, of_part] : parts) {
    const SiteRule* last = nullptr;
    bool taken = !of_part.method;
    for (size_t i = 0; i < kSites.size(); ++i) {
      if (!is_of_part(kSites[i], name)) continue;
      last = &kSites[i];
      taken = taken || fits(*of_part.method, *last);
      take_from_part(of_part, *last, given[i]);
    }
    if (!taken) MB_TRY(check_fits(name + ".method", *of_part.method, *last));
  }
  return given;
}

}  // namespace

Result<std::vector<TpOverlapSite>> tp_overlap_sites(const KnobMap& cfg, int tp, RowsOfARank rows,
                                                    const TpOverlapRecipe& recipe) {
  MB_ASSIGN(const auto given, given_of(cfg));
  std::vector<TpOverlapSite> sites;
  for (size_t i = 0; i < kSites.size(); ++i) {
    MB_ASSIGN(TpOverlapSite site, site_of(kSites[i], given[i], tp, rows, recipe));
    sites.push_back(site);
  }
  // A dgrad that is split has no whole reduce-scatter left for wgrad to cover.
  for (size_t i = 0; i + 1 < sites.size(); ++i) {
    TpOverlapSite& dgrad = sites[i];
    TpOverlapSite& wgrad = sites[i + 1];
    if (kSites[i + 1].split || dgrad.method == Method::kBulk || dgrad.method == Method::kNone) continue;
    if (given[i + 1].method == Method::kBulk)
      return bad(fmt::format("{}.method", wgrad.name),
                 fmt::format("bulk has no reduce-scatter to cover: {} splits it", dgrad.name),
                 fmt::format("give none here or bulk for {}", dgrad.name));
    wgrad.method = Method::kNone;
  }
  return sites;
}

}  // namespace mbb::trainer
