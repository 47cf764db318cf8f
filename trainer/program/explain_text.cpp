// Explain as text: a summary of one screen, then a stage's totals and ops in aligned columns.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "profiler/base/text.h"
#include "trainer/ops/op_kind.h"
#include "trainer/program/explain.h"
#include "trainer/program/lifetimes.h"

namespace mbb::trainer {
namespace {

// Columns as wide as their widest cell, two blanks between; numbers stand right.
class Columns {
 public:
  explicit Columns(std::vector<bool> right) : right_(std::move(right)) {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text(std::string_view indent) const {
    std::vector<size_t> width(right_.size(), 0);
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], display_width(row[i]));
    std::string out;
    for (const auto& row : rows_) {
      std::string line(indent);
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string blanks(width[i] - display_width(row[i]), ' ');
        line += (i ? "  " : "") + (right_[i] ? blanks + row[i] : row[i] + blanks);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
    return out;
  }

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string flops_text(double flops) {
  return flops == 0 ? "-" : format_count(flops, "F");
}
std::string bytes_text(double bytes) {
  return bytes == 0 ? "-" : format_bytes_decimal(bytes);
}

std::string flops_per_token_text(double flops) {
  return flops >= 1e9 ? fmt::format("{:.2f} GF", flops / 1e9) : flops_text(flops);
}

std::string header(const Explain& e) {
  std::string mapping = e.sizes.encoder_pp > 0 ? fmt::format("encoder TP{}, ", e.sizes.encoder_tp) : "";
  if (e.sizes.pp > 1)
    mapping += fmt::format("{} stages{}, ", e.sizes.pp, e.chunks > 1 ? fmt::format(" of {} chunks", e.chunks) : "");
  mapping += fmt::format("TP{}{}", e.sizes.tp, e.sequence_parallel ? "+SP" : "");
  if (e.sizes.cp > 1) mapping += fmt::format(", CP{}", e.sizes.cp);
  if (e.sizes.ep > 1) mapping += fmt::format(", EP{}", e.sizes.ep);
  mapping += fmt::format(", DP{}", e.sizes.dp);
  if (e.exchanges_tokens && e.sizes.etp != e.sizes.tp) mapping += fmt::format(", ETP{}", e.sizes.etp);
  const std::string padding = e.padded_vocabulary == e.vocabulary
                                  ? ""
                                  : fmt::format(", vocabulary {} padded to {}", e.vocabulary, e.padded_vocabulary);
  const auto tokens = static_cast<double>(e.tokens);
  // Padding is run through every layer but experts, and is no model FLOPs of MFU's.
  const bool pads = e.label_tokens != tokens;
  const std::string labelled = pads ? fmt::format(", {} with a label", format_percent(e.label_tokens / tokens, 1)) : "";
  const std::string run = pads ? fmt::format(" ({} run, with padding)", flops_text(e.model_flops)) : "";
  std::string again;
  if (e.recompute_flops > 0)
    again = fmt::format("recompute {}/step, {} on top of the model FLOPs\n", flops_text(e.recompute_flops),
                        format_percent(e.recompute_flops / e.model_flops, 1));
  return fmt::format(
      "{}  {}, {} GPU{}, {} micro-batch{} of {} x {} tokens, {}\n"
      "flops    {}/step model FLOPs{}   {}/token ({}{})   {} tokens/step{}\n{}",
      e.model, mapping, e.gpus, e.gpus == 1 ? "" : "s", e.micro_batches, e.micro_batches == 1 ? "" : "es",
      e.micro_batch, e.sequence, e.compute_dtype, flops_text(pads ? e.closed_form_flops : e.model_flops), run,
      flops_per_token_text(e.flops_per_token), e.convention, padding, e.tokens, labelled, again);
}

// What the recipe takes of the products, and what a recipe of fewer bits could.
std::string precision(const Explain& e) {
  const std::string share = format_percent(e.model_flops > 0 ? e.eligible_flops / e.model_flops : 0, 1);
  if (e.quantized_flops == 0)
    return fmt::format("numbers  {}; linear layers of blocks, which FP8 could take: {} of model FLOPs\n", e.recipe,
                       share);
  return fmt::format("numbers  {} takes {} of model FLOPs; linear layers of blocks are {}\n", e.recipe,
                     format_percent(e.quantized_flops / e.model_flops, 1), share);
}

std::string class_name(const RankClass& of) {
  return fmt::format("{}stage {}{}", of.role == MeshRole::kEncoder ? "encoder " : "", of.pp,
                     of.cp > 0 ? fmt::format(" cp {}", of.cp) : "");
}

// The rows [first, first + count) that are not shown: whole stages, with a row a context-parallel rank, or parts of
// some.
std::string left_out(const Explain& e, size_t first, size_t count) {
  size_t ranks = 1;
  for (const ClassRow& row : e.classes) ranks = std::max(ranks, static_cast<size_t>(row.rank_class.cp) + 1);
  const RankClass &from = e.classes[first].rank_class, &to = e.classes[first + count - 1].rank_class;
  if (from.cp > 0 || count % ranks != 0)
    return fmt::format("         and {} rows between, {} to {}\n", count, class_name(from), class_name(to));
  const std::string each = ranks > 1 ? fmt::format(", {} CP ranks each,", ranks) : "";
  return fmt::format("         and {} stages{} between\n", count / ranks, each);
}

// One row a rank class; of a long pipeline the first and the last ones.
std::string memory(const Explain& e, const ExplainOptions& options) {
  constexpr size_t kShown = 8;
  const size_t n = e.classes.size();
  std::array<bool, kCategories> used{};
  for (const ClassRow& row : e.classes)
    for (size_t c = 0; c < used.size(); ++c) used[c] = used[c] || row.peak_by_category[c] > 0;
  const bool host = std::any_of(e.classes.begin(), e.classes.end(), [](const ClassRow& c) { return c.host_bytes > 0; });
  const bool graphs =
      std::any_of(e.classes.begin(), e.classes.end(), [](const ClassRow& c) { return c.graph_bytes > 0; });
  std::vector<bool> right(kCategories + 7, true);
  right.front() = false;
  Columns table(std::move(right));
  std::vector<std::string> head{"memory", "arena"};
  for (size_t c = 0; c < used.size(); ++c)
    if (used[c]) head.push_back(replace_all(name(static_cast<Category>(c)), "_", " "));
  head.push_back("slack");
  if (graphs) head.push_back("graphs");
  if (host) head.push_back("on the host");
  if (options.capacity_bytes > 0) head.push_back("of " + format_bytes(static_cast<double>(options.capacity_bytes)));
  table.add(std::move(head));
  for (size_t i = 0; i < n; ++i) {
    if (n > kShown && i >= kShown / 2 && i < n - kShown / 2) continue;
    const ClassRow& row = e.classes[i];
    std::vector<std::string> cells{class_name(row.rank_class), format_bytes(static_cast<double>(row.arena_bytes))};
    for (size_t c = 0; c < used.size(); ++c)
      if (used[c]) cells.push_back(format_bytes(static_cast<double>(row.peak_by_category[c])));
    cells.push_back(format_bytes(static_cast<double>(row.slack_bytes())));
    if (graphs) cells.push_back(format_bytes(static_cast<double>(row.graph_bytes)));
    if (host) cells.push_back(format_bytes(static_cast<double>(row.host_bytes)));
    if (options.capacity_bytes > 0)
      cells.push_back(row.arena_bytes + row.graph_bytes <= options.capacity_bytes ? "fits" : "too much");
    table.add(std::move(cells));
  }
  std::string text = table.text("");
  if (n > kShown) text += left_out(e, kShown / 2, n - kShown);
  return text;
}

// The stage that moves most over each kind of group.
std::string communication(const Explain& e) {
  Columns table({false, true, true, true, false});
  table.add({"comm", "sent a GPU and step", "calls", "largest", "most at"});
  for (size_t g = 0; g < kGroupKinds.size(); ++g) {
    const CommRow* most = nullptr;
    const ClassRow* at = nullptr;
    for (const ClassRow& row : e.classes)
      for (const CommRow& comm : row.comm)
        if (comm.group == static_cast<GroupKind>(g) && (!most || comm.wire_bytes > most->wire_bytes))
          most = &comm, at = &row;
    if (!most) continue;
    table.add({fmt::format("  {}", name(most->group)), format_bytes_decimal(most->wire_bytes),
               std::to_string(most->calls), format_bytes_decimal(most->largest_bytes), class_name(at->rank_class)});
  }
  return e.gpus == 1 ? "comm     none: one GPU\n" : table.text("");
}

std::string bubble(const Explain& e) {
  if (e.sizes.pp == 1) return "bubble   none: one stage\n";
  return fmt::format("bubble   {} of the step by the formula, {} by replay of the schedule (F 1, B 2, free messages)\n",
                     format_percent(e.bubble_formula, 2), format_percent(e.bubble_replayed, 2));
}

struct Total {
  int64_t runs = 0;
  double model_flops = 0;
  double flops = 0;
  double bytes = 0;
  double wire_bytes = 0;

  void add(const OpRow& op) {
    const auto times = static_cast<double>(op.runs);
    runs += op.runs;
    model_flops += op.model_flops ? op.flops * times : 0;
    flops += op.flops * times;
    bytes += op.bytes * times;
    wire_bytes += op.wire_bytes * times;
  }
  void add(const Total& other) {
    runs += other.runs;
    model_flops += other.model_flops, flops += other.flops;
    bytes += other.bytes, wire_bytes += other.wire_bytes;
  }
  std::vector<std::string> cells(std::string of) const {
    return {"  " + std::move(of), std::to_string(runs), flops_text(model_flops),
            flops_text(flops),    bytes_text(bytes),    bytes_text(wire_bytes)};
  }
};

// Kinds of ops that the summary lists, the dearest first; the others are one line, so that it stays one screen. JSON
// has them all.
constexpr size_t kKindsShown = 20;

std::string totals(const ClassRow& row) {
  std::array<Total, kSegmentKinds> by_phase;
  std::map<std::string, Total> by_kind;
  Total all;
  for (const SegmentRow& segment : row.segments)
    for (const OpRow& op : segment.ops) {
      by_phase[static_cast<size_t>(segment.kind)].add(op);
      const std::string role = op.role == Role::kNone ? "" : std::string(" ") + name(op.role);
      by_kind[std::string(op.kind) + role].add(op);
      all.add(op);
    }
  std::vector<std::pair<std::string, Total>> kinds(by_kind.begin(), by_kind.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.flops, a.second.bytes) > std::pair(b.second.flops, b.second.bytes);
  });
  Columns table({false, true, true, true, true, true});
  table.add({class_name(row.rank_class) + ", a step", "ops run", "model FLOPs", "FLOPs", "bytes", "sent"});
  for (size_t i = 0; i < by_phase.size(); ++i)
    if (by_phase[i].runs > 0) table.add(by_phase[i].cells(name(static_cast<SegmentKind>(i))));
  table.add(all.cells("all"));
  table.add({"by kind"});
  Total others;
  const size_t shown = kinds.size() > kKindsShown + 1 ? kKindsShown : kinds.size();
  for (size_t i = 0; i < kinds.size(); ++i)
    if (i < shown)
      table.add(kinds[i].second.cells(kinds[i].first));
    else
      others.add(kinds[i].second);
  if (shown < kinds.size()) table.add(others.cells(fmt::format("{} other kinds", kinds.size() - shown)));
  return table.text("") + fmt::format("memory peaks at {}\n", row.peak_path);
}

// What each pass changed, and nothing that it left alone: in this class, or in the first other one that it changed.
// Of rows with sequences of many lengths only the step that runs knows the lengths, and what stands beside it has
// others.
std::string passes(const ClassRow& row, const std::vector<ClassRow>& classes, bool many_lengths) {
  Columns table({false, false});
  table.add(
      {"passes", std::string("before → after, of a GPU and a whole step; a pass begins where the one above it ends") +
                     (many_lengths ? "; FLOPs over whole rows" : "")});
  std::set<std::string> told;
  for (const PassEffect& effect : row.passes) {
    told.insert(effect.pass);
    table.add({"  " + effect.pass, join(changes(effect), ", ")});
  }
  for (const ClassRow& other : classes)
    for (const PassEffect& effect : other.passes)
      if (told.insert(effect.pass).second)
        table.add({"  " + effect.pass, class_name(other.rank_class) + ": " + join(changes(effect), ", ")});
  return told.empty() ? "" : table.text("");
}

std::string without_effect(const Explain& e) {
  return e.idle.empty() ? "" : "no effect here: " + join(e.idle, ", ") + "\n";
}

std::string op_list(const SegmentRow& segment, const ExplainOptions& options, size_t& listed) {
  Columns table({false, false, true, true, false, false});
  table.add({fmt::format("{}, {} call{} a step", segment.name, segment.calls, segment.calls == 1 ? "" : "s"), "what",
             "FLOPs", "bytes", "stream", "when"});
  size_t shown = 0;
  for (const OpRow& op : segment.ops) {
    if (!options.path.empty() && !glob_match(options.path, op.path)) continue;
    ++shown;
    table.add({"  " + op.path, op.what, flops_text(op.flops), bytes_text(op.bytes), name(op.stream), name(op.when)});
  }
  listed += shown;
  if (shown == 0) return "";
  std::string text = "\n" + table.text("");
  if (shown < segment.ops.size()) text += fmt::format("  {} of {} ops\n", shown, segment.ops.size());
  return text;
}

Result<std::string> op_lists(const ClassRow& row, const ExplainOptions& options) {
  std::string text;
  std::vector<std::string> names;
  bool found = false;
  size_t listed = 0;
  for (const SegmentRow& segment : row.segments) {
    names.push_back(segment.name);
    if (segment.name.find(options.segment) == std::string::npos) continue;
    found = true;
    text += op_list(segment, options, listed);
  }
  if (!found)
    return fail(ErrorCode::kBadArgument,
                fmt::format("stage {} has no segment named like '{}'", row.rank_class.pp, printable(options.segment)),
                "segments: " + join(names, ", "));
  if (listed == 0)
    return fail(ErrorCode::kBadArgument,
                fmt::format("no op of the segments listed has a path like '{}'", printable(options.path)),
                "'*' stands for any text, '?' for one letter: layers.0.*");
  return text;
}

}  // namespace

Result<std::string> to_text(const Explain& explained, const ExplainOptions& options) {
  const auto row = std::find_if(explained.classes.begin(), explained.classes.end(), [&](const ClassRow& c) {
    return c.rank_class.role == MeshRole::kDecoder && c.rank_class.pp == options.stage;
  });
  if (row == explained.classes.end())
    return fail(ErrorCode::kBadArgument,
                fmt::format("stage {} is not one of the {} pipeline stage{}", options.stage, explained.sizes.pp,
                            explained.sizes.pp == 1 ? "" : "s"),
                fmt::format("stages count from 0 to {}", explained.sizes.pp - 1));
  std::string text = header(explained) + precision(explained) + memory(explained, options) + communication(explained) +
                     bubble(explained) +
                     passes(*row, explained.classes, explained.label_tokens < static_cast<double>(explained.tokens)) +
                     totals(*row) + fmt::format("program {}\n", explained.program_hash) + without_effect(explained);
  if (!options.ops && options.segment.empty() && options.path.empty()) return text;
  MB_ASSIGN(const std::string lists, op_lists(*row, options));
  return text + lists;
}

Result<std::string> lifetimes_text(const Program& program, const std::string& path) {
  const std::vector<Lifetime> lives = lifetimes(program);
  std::vector<TensorId> order;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (t.view_of != kNoTensor || !lives[i].used()) continue;
    if (path.empty() || glob_match(path, t.path)) order.push_back(static_cast<TensorId>(i));
  }
  if (order.empty())
    return fail(ErrorCode::kBadArgument, fmt::format("no buffer has a path like '{}'", printable(path)),
                "'*' stands for any text, '?' for one letter: layers.0.*");
  std::stable_sort(order.begin(), order.end(), [&](TensorId a, TensorId b) {
    return lives[static_cast<size_t>(a)].first_use < lives[static_cast<size_t>(b)].first_use;
  });
  Columns table({false, true, true, false, false, false, false});
  table.add({fmt::format("tensor, stage {}", program.rank_class.pp), "bytes", "slots", "category", "lives",
             "first written by", "last read by"});
  int64_t total = 0;
  for (const TensorId id : order) {
    const Tensor& t = program.tensor(id);
    if (t.left_out) continue;
    const Lifetime& life = lives[static_cast<size_t>(id)];
    const int slots = t.scope == Scope::kMicroBatch ? t.ring : 1;
    total += t.bytes() * slots;
    const char* outside = t.scope == Scope::kPersistent ? "(before the step)" : "(the host)";
    table.add({"  " + t.path, format_bytes_decimal(static_cast<double>(t.bytes())), std::to_string(slots),
               name(t.category), name(t.scope), life.first_writer ? life.first_writer->path : outside,
               life.last_reader ? life.last_reader->path : "(nobody)"});
  }
  return table.text("") + fmt::format("  {} buffers, {} if none shared bytes\n", order.size(),
                                      format_bytes_decimal(static_cast<double>(total)));
}

}  // namespace mbb::trainer
