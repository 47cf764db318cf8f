// The reader of layout strings, and the cut itself.
#include "trainer/run/pipeline_layout.h"

#include <fmt/core.h>

namespace mbb::trainer {
namespace {

constexpr const char* kLayout = "parallel.pipeline_layout";
constexpr const char* kPp = "parallel.pipeline_model_parallel_size";
constexpr const char* kVpp = "parallel.virtual_pipeline_model_parallel_size";
constexpr const char* kGroup = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
constexpr const char* kMeaning = "E embedding, t layer, m multi-token prediction, L loss, | next chunk, *n repeats";

// One letter or bar of the string, repeats written out.
struct Symbol {
  char what = 't';
  size_t column = 1;
};

class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  Result<std::vector<Symbol>> read() {
    MB_ASSIGN(std::vector<Symbol> symbols, sequence(0));
    if (at_ < text_.size()) return wrong("closes a parenthesis that nobody opened");
    return symbols;
  }

 private:
  static constexpr size_t kMostSymbols = 100'000;  // the deepest models have some hundred layers
  static constexpr int kDeepest = 16;

  tl::unexpected<Error> wrong(const std::string& why) const {
    const std::string here = at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : "the end";
    return fail(ErrorCode::kBadArgument, fmt::format("{}, column {}: {} {}", kLayout, at_ + 1, here, why), kMeaning);
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ',' || text_[at_] == ' ')) ++at_;
  }

  // Until the end or the parenthesis that closes.
  Result<std::vector<Symbol>> sequence(int depth) {
    std::vector<Symbol> all;
    for (skip(); at_ < text_.size() && text_[at_] != ')'; skip()) {
      MB_ASSIGN(const std::vector<Symbol> one, item(depth));
      MB_ASSIGN(const int64_t times, repeats());
      if (all.size() + one.size() * static_cast<size_t>(times) > kMostSymbols) return wrong("makes too many layers");
      for (int64_t i = 0; i < times; ++i) all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  Result<std::vector<Symbol>> item(int depth) {
    const char c = text_[at_];
    if (std::string_view("EtmL|").find(c) != std::string_view::npos) return std::vector<Symbol>{{c, ++at_}};
    if (c != '(') return wrong("is no part of a layout");
    if (depth == kDeepest) return wrong("is nested too deeply");
    ++at_;
    MB_ASSIGN(std::vector<Symbol> inner, sequence(depth + 1));
    if (at_ == text_.size()) return wrong("comes before the parenthesis closes");
    ++at_;
    return inner;
  }

  Result<int64_t> repeats() {
    skip();
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    ++at_;
    if (at_ == text_.size() || text_[at_] < '0' || text_[at_] > '9') return wrong("stands where a count belongs");
    int64_t times = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      times = times * 10 + (text_[at_] - '0');
      if (times > static_cast<int64_t>(kMostSymbols)) return wrong("makes too many layers");
    }
    return times;
  }

  std::string_view text_;
  size_t at_ = 0;
};

tl::unexpected<Error> bad(std::string what, std::string hint = {}) {
  return fail(ErrorCode::kBadArgument, std::move(what), std::move(hint));
}

Result<std::vector<ChunkParts>> chunks_of(const std::vector<Symbol>& symbols) {
  std::vector<ChunkParts> chunks(1);
  const Symbol* last = nullptr;
  const auto after = [](char what) { return what == 'E' ? 0 : what == 't' ? 1 : what == 'm' ? 2 : 3; };
  for (const Symbol& s : symbols) {
    const auto wrong = [&](const char* why) {
      return fail(ErrorCode::kBadArgument, fmt::format("{}, column {}: '{}' {}", kLayout, s.column, s.what, why),
                  "the model's order is E, t..., m..., L");
    };
    if (s.what == '|') {
      chunks.emplace_back();
      continue;
    }
    if (last == nullptr && s.what != 'E') return wrong("is first, where the embedding E belongs");
    if (last != nullptr && s.what == 'E') return wrong("comes after the model's first part");
    if (last != nullptr && last->what == 'L') return wrong("comes after the loss");
    if (last != nullptr && after(s.what) < after(last->what)) return wrong("comes too late");
    last = &s;
    ChunkParts& chunk = chunks.back();
    chunk.embedding = chunk.embedding || s.what == 'E';
    chunk.layers += s.what == 't' ? 1 : 0;
    chunk.mtp_layers += s.what == 'm' ? 1 : 0;
    chunk.loss = chunk.loss || s.what == 'L';
  }
  return chunks;
}

int64_t layers_in(const std::vector<ChunkParts>& chunks) {
  int64_t layers = 0;
  for (const ChunkParts& chunk : chunks) layers += chunk.layers;
  return layers;
}

// The model's chunks in its order, from the layout string.
Result<std::vector<ChunkParts>> written_chunks(const Layout& l) {
  const ParallelConfig& p = l.config.parallel;
  MB_ASSIGN(std::vector<ChunkParts> chunks, parse_pipeline_layout(p.pipeline_layout));
  const auto count = static_cast<int64_t>(chunks.size());
  if (p.account_for_embedding_in_pipeline_split || p.account_for_loss_in_pipeline_split)
    return bad(fmt::format("{} with parallel.account_for_{}_in_pipeline_split: both say where layers lie", kLayout,
                           p.account_for_embedding_in_pipeline_split ? "embedding" : "loss"),
               "use one of them");
  if (count % l.pp != 0)
    return bad(fmt::format("{} has {} chunks, which do not divide over {} = {}", kLayout, count, kPp, l.pp),
               "every stage holds as many chunks; '|' stands between chunks");
  if (p.virtual_pipeline_model_parallel_size > 1 && p.virtual_pipeline_model_parallel_size * l.pp != count)
    return bad(fmt::format("{} has {} chunks where {} × {} = {} × {} ask for {}", kLayout, count, kPp, kVpp, l.pp,
                           p.virtual_pipeline_model_parallel_size, l.pp * p.virtual_pipeline_model_parallel_size));
  if (layers_in(chunks) != l.model.num_layers)
    return bad(fmt::format("{} has {} layers and model {} has model.num_layers = {}", kLayout, layers_in(chunks),
                           l.model.name, l.model.num_layers));
  if (!chunks.front().embedding || !chunks.back().loss)
    return bad(fmt::format("{}: the first chunk begins with E and the last one ends with L", kLayout));
  if (chunks.back().mtp_layers != l.model.num_mtp_layers)
    return bad(fmt::format("{} has {} multi-token prediction layers m in the loss's chunk and model {} has {}", kLayout,
                           chunks.back().mtp_layers, l.model.name, l.model.num_mtp_layers),
               "they lie beside the LM head, which they share");
  return chunks;
}

// The same from equal slots, of which embedding and loss may take one each.
Result<std::vector<ChunkParts>> equal_chunks(const Layout& l) {
  const ParallelConfig& p = l.config.parallel;
  const int64_t count = l.pp * p.virtual_pipeline_model_parallel_size;
  const int64_t embedding = p.account_for_embedding_in_pipeline_split ? 1 : 0;
  const int64_t loss = p.account_for_loss_in_pipeline_split ? 1 : 0;
  const int64_t slots = l.model.num_layers + embedding + loss;
  const std::string cut =
      p.virtual_pipeline_model_parallel_size == 1
          ? fmt::format("{} = {}", kPp, l.pp)
          : fmt::format("{} × {} = {} × {}", kPp, kVpp, l.pp, p.virtual_pipeline_model_parallel_size);
  if (slots % count != 0)
    return bad(fmt::format("{} does not divide model.num_layers = {}{}", cut, l.model.num_layers,
                           embedding + loss > 0 ? fmt::format(" and {} for embedding and loss", embedding + loss) : ""),
               fmt::format("choose a number that divides {}, let parallel.account_for_embedding_in_pipeline_split or "
                           "parallel.account_for_loss_in_pipeline_split fill a slot, or write {}",
                           slots, kLayout));
  std::vector<ChunkParts> chunks(static_cast<size_t>(count), {.layers = slots / count});
  chunks.front().embedding = true;
  chunks.front().layers -= embedding;
  chunks.back().loss = true;
  chunks.back().layers -= loss;
  chunks.back().mtp_layers = l.model.num_mtp_layers;
  return chunks;
}

// What the interleaved order asks for.
Status check_interleaving(Layout& l) {
  const int64_t asked = l.config.parallel.microbatch_group_size_per_virtual_pipeline_stage;
  l.micro_batch_group = asked == 0 ? l.pp : static_cast<int>(asked);
  if (l.vpp == 1) {
    if (asked == 0) return {};
    return bad(fmt::format("{} = {} needs {} above 1", kGroup, asked, kVpp));
  }
  if (l.pp == 1) return bad(fmt::format("{} = {} needs {} above 1", kVpp, l.vpp, kPp));
  if (l.micro_batch_group < l.pp)
    return bad(fmt::format("{} = {} is less than {} = {}", kGroup, l.micro_batch_group, kPp, l.pp));
  const int rest = l.micro_batches % l.micro_batch_group;
  if (rest == 0 || rest >= l.pp) return {};
  return bad(
      fmt::format("train.global_batch_size gives {} micro-batches, whose last group has {} of {}: an interleaved "
                  "pipeline of {} stages needs as many in each",
                  l.micro_batches, rest, l.micro_batch_group, l.pp),
      fmt::format("make the micro-batches a multiple of {}", l.micro_batch_group));
}

Status choose_messages(Layout& l) {
  const OverlapConfig& o = l.config.overlap;
  const bool overlap = o.overlap_p2p_comm.value_or(l.vpp > 1);
  const bool batch = o.batch_p2p_comm.value_or(!overlap && l.vpp == 1);
  if (overlap && batch)
    return bad("overlap.batch_p2p_comm with overlap.overlap_p2p_comm: a batch takes its turn in the compute stream",
               "switch one of them off");
  if (batch && l.vpp > 1)
    return bad(
        fmt::format("overlap.batch_p2p_comm with {} = {}: stages receive chunks long before they compute them, and "
                    "would wait for each other in a circle",
                    kVpp, l.vpp),
        "leave overlap.batch_p2p_comm off");
  l.message_form = overlap ? MessageForm::kOverlapped : batch ? MessageForm::kBatched : MessageForm::kInTurn;
  return {};
}

}  // namespace

Result<std::vector<ChunkParts>> parse_pipeline_layout(std::string_view text) {
  MB_ASSIGN(const std::vector<Symbol> symbols, LayoutReader(text).read());
  return chunks_of(symbols);
}

Status split_stages(Layout& l) {
  MB_ASSIGN(const std::vector<ChunkParts> chunks,
            l.config.parallel.pipeline_layout.empty() ? equal_chunks(l) : written_chunks(l));
  l.vpp = static_cast<int>(chunks.size()) / l.pp;
  l.stages.assign(static_cast<size_t>(l.pp), {});
  int64_t layer = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const bool encoder = i == 0 && l.model.is_encoder_decoder() && !l.has_encoder_mesh();
    l.stages[i % l.stages.size()].push_back({layer, chunks[i].layers, chunks[i].embedding, chunks[i].loss, encoder});
    layer += chunks[i].layers;
  }
  MB_TRY(check_interleaving(l));
  return choose_messages(l);
}

}  // namespace mbb::trainer
