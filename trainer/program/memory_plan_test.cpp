// The memory plan against a brute force over the unrolled step: no two live buffers share bytes, the peak is the peak.
#include "trainer/program/memory_plan.h"

#include <map>

#include "profiler/base/text.h"
#include "trainer/ops/message_peers.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

// From the first to the last moment (op of a call, counted over the unrolled step) that touches one value of a buffer.
struct Interval {
  int64_t first = 0;
  int64_t last = 0;
};

bool is_batched(const Op& op) {
  return (sends(op) || receives(op)) && std::get<CommAttrs>(op.attrs).form == MessageForm::kBatched;
}

struct Unrolled {
  int64_t moments = 0;
  std::map<std::pair<TensorId, int>, std::vector<Interval>> alive;  // (storage, slot) -> its values
};

// Every op of every call counts, also one that this micro-batch skips: the plan holds for all of them alike.
Unrolled unroll(const Program& program) {
  Unrolled out;
  int most_receives = 0;
  for (const Segment& segment : program.segments) {
    int received = 0;
    for (const Op& op : segment.ops) received += is_batched(op) && receives(op) ? 1 : 0;
    most_receives = std::max(most_receives, received);
  }
  std::map<std::tuple<TensorId, int, int64_t>, Interval> values;  // by storage, slot and value
  for (size_t c = 0; c < program.schedule.size(); ++c) {
    const Call& call = program.schedule[c];
    for (const Op& op : program.segment(call).ops) {
      // What a batched message sends is read until the receives behind it, which are one exchange with it, are over.
      const bool exchanged = is_batched(op) && sends(op) && most_receives > 0 && c + 1 < program.schedule.size() &&
                             is_micro_batched(program.segment(program.schedule[c + 1]).kind);
      const int64_t left = &program.segment(call).ops.back() - &op;
      const auto touch = [&](TensorId id) {
        const TensorId storage = program.storage(id);
        const Tensor& t = program.tensor(storage);
        const int64_t value = t.scope == Scope::kCall ? static_cast<int64_t>(c) : call.micro_batch;
        const auto [at, added] =
            values.try_emplace({storage, slot(t, call), value}, Interval{out.moments, out.moments});
        at->second.last = std::max(at->second.last, out.moments + (exchanged ? left + most_receives : 0));
      };
      for (TensorId id : op.in) touch(id);
      for (TensorId id : op.out) touch(id);
      ++out.moments;
    }
  }
  for (const auto& [key, interval] : values) {
    const auto& [storage, slot, value] = key;
    const Tensor& t = program.tensor(storage);
    const bool whole_step = t.scope == Scope::kPersistent || t.scope == Scope::kStep || t.category == Category::kInput;
    out.alive[{storage, slot}].push_back(whole_step ? Interval{0, out.moments - 1} : interval);
  }
  return out;
}

bool meet(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  for (const Interval& x : a)
    for (const Interval& y : b)
      if (x.first <= y.last && y.first <= x.last) return true;
  return false;
}

void expect_disjoint(const Program& program, const MemoryPlan& plan, const Unrolled& unrolled) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const LiveBuffer& a = plan.buffers[i];
    ASSERT_GE(a.offset, 0);
    ASSERT_EQ(a.offset % MemoryPlan::kAlign, 0);
    ASSERT_LE(a.offset + a.bytes, plan.arena_bytes);
    ASSERT_EQ(plan.offsets[static_cast<size_t>(a.tensor)][static_cast<size_t>(a.slot)], a.offset);
    for (size_t j = i + 1; j < plan.buffers.size(); ++j) {
      const LiveBuffer& b = plan.buffers[j];
      if (a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) continue;
      ASSERT_FALSE(meet(unrolled.alive.at({a.tensor, a.slot}), unrolled.alive.at({b.tensor, b.slot})))
          << program.tensor(a.tensor).path << " and " << program.tensor(b.tensor).path;
    }
  }
}

int64_t brute_peak(const Program& program, const Unrolled& unrolled) {
  std::vector<int64_t> change(static_cast<size_t>(unrolled.moments) + 1, 0);
  for (const auto& [buffer, values] : unrolled.alive) {
    const bool always = values.front().first == 0 && values.front().last == unrolled.moments - 1;
    for (size_t i = 0; i < (always ? 1 : values.size()); ++i) {
      change[static_cast<size_t>(values[i].first)] += program.tensor(buffer.first).bytes();
      change[static_cast<size_t>(values[i].last) + 1] -= program.tensor(buffer.first).bytes();
    }
  }
  int64_t live = 0;
  int64_t peak = 0;
  for (int64_t bytes : change) peak = std::max(peak, live += bytes);
  return peak;
}

TEST(MemoryPlan, NoTwoLiveBuffersShareBytesAndThePeakIsThePeak) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    const Built built = build(random_mapping(random));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mapping_of(built));
    for (size_t c = 0; c < built.programs.programs.size(); ++c) {
      const Program& program = built.programs.programs[c];
      const MemoryPlan& plan = built.programs.plans[c];
      const Unrolled unrolled = unroll(program);
      ASSERT_EQ(unrolled.alive.size(), plan.buffers.size());
      expect_disjoint(program, plan, unrolled);
      ASSERT_EQ(plan.peak_live_bytes, brute_peak(program, unrolled));
      ASSERT_GE(plan.arena_bytes, plan.peak_live_bytes);
      int64_t by_category = 0;
      for (int64_t bytes : plan.peak_by_category) by_category += bytes;
      ASSERT_EQ(by_category, plan.peak_live_bytes);
      int64_t live = 0;
      for (const LiveBuffer& buffer : plan.live_at_peak(program)) live += buffer.bytes;
      ASSERT_EQ(live, plan.peak_live_bytes);
    }
  }
}

// Both directions of a stage's exchange travel at once: a receive that writes where the send before it reads loses a
// race. Not overlapped, so that messages are batched; also between an encoder and a decoder of their own.
TEST(MemoryPlan, BatchedMessagesShareNoBytes) {
  std::vector<Config> configs{mapped(1, 2, 1, 8), mapped(2, 4, 1, 8)};
  Config t5 = mapped(1, 1, 1, 4);
  t5.model = ModelConfig{};
  t5.model.name = "t5-220m";
  t5.model.num_layers = t5.model.encoder_num_layers = 2;
  t5.parallel.gpus = 2;
  t5.parallel.encoder_pipeline_model_parallel_size = 1;
  t5.train.seq_length = 16;
  configs.push_back(t5);
  for (Config& config : configs) {
    config.overlap.overlap_p2p_comm = false;
    config.overlap.batch_p2p_comm = true;
    const Built built = build(config);
    SCOPED_TRACE(config.model.name + " " + mapping_of(built));
    int exchanges = 0;
    for (size_t c = 0; c < built.programs.programs.size(); ++c) {
      const Program& program = built.programs.programs[c];
      const MemoryPlan& plan = built.programs.plans[c];
      std::vector<std::pair<LiveBuffer, std::string>> batch;  // what the messages under way read and write
      for (const Call& call : program.schedule)
        for (const Op& op : program.segment(call).ops) {
          if (!is_batched(op)) {
            batch.clear();
            continue;
          }
          const TensorId moved = sends(op) ? op.in[0] : op.out[0];
          const Tensor& t = program.tensor(moved);
          const LiveBuffer own{moved, 0, plan.offset(program, moved, slot(t, call)), t.bytes()};
          for (const auto& [other, path] : batch) {
            EXPECT_TRUE(own.offset + own.bytes <= other.offset || other.offset + other.bytes <= own.offset)
                << op.path << " and " << path;
            ++exchanges;
          }
          batch.emplace_back(own, op.path);
        }
    }
    EXPECT_GT(exchanges, 0);
  }
}

// Backwards in any order, so that the fullest call may lie anywhere.
TEST(MemoryPlan, HoldsForAnySchedule) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 30; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program program = build(mapped(1, 1, 1, 1)).programs.programs[0];
    std::vector<Call> calls;
    std::vector<int> waiting;
    for (int forward = 0; forward < program.micro_batches || !waiting.empty();) {
      if (waiting.empty() || (forward < program.micro_batches && random() % 2 == 0)) {
        waiting.push_back(forward);
        calls.push_back({0, forward++});
        continue;
      }
      std::swap(waiting[random() % waiting.size()], waiting.back());
      calls.push_back({1, waiting.back()});
      waiting.pop_back();
    }
    program.schedule.erase(program.schedule.begin(), program.schedule.end() - 1);  // the optimizer stays
    program.schedule.insert(program.schedule.begin(), calls.begin(), calls.end());
    for (Tensor& t : program.tensors)
      if (t.scope == Scope::kMicroBatch) t.ring = program.micro_batches;
    const MemoryPlan plan = plan_memory(program);
    const Unrolled unrolled = unroll(program);
    expect_disjoint(program, plan, unrolled);
    ASSERT_EQ(plan.peak_live_bytes, brute_peak(program, unrolled));
  }
}

// What the planner loses to holes, over stages of a deeper pipeline.
TEST(MemoryPlan, SlackStaysSmall) {
  const Built built = build(mapped(2, 4, 1, 8));
  for (const MemoryPlan& plan : built.programs.plans)
    EXPECT_LT(static_cast<double>(plan.arena_bytes), 1.1 * static_cast<double>(plan.peak_live_bytes));
}

// Chunks of an interleaved pipeline take turns: the slots of one hold another's values when it holds fewer.
TEST(MemoryPlan, ChunksShareTheirSlots) {
  Config config = mapped(1, 4, 1, 16);
  config.parallel.virtual_pipeline_model_parallel_size = 4;
  config.train.global_batch_size = 32;
  config.train.seq_length = 512;
  const Built built = build(config);
  const Program& program = built.programs.programs[0];
  const MemoryPlan& plan = built.programs.plans[0];
  int64_t slots = 0;
  for (const Tensor& t : program.tensors)
    if (t.path.ends_with(".mlp.fc1.out")) slots += t.ring;
  // Together 2·(p − 1) + (v − 1)·p + 1 = 19 micro-batches of a chunk are alive; each chunk has slots for its own most.
  EXPECT_GT(slots, 24);
  EXPECT_LT(static_cast<double>(plan.arena_bytes), 1.1 * static_cast<double>(plan.peak_live_bytes));
}

// Where groups of micro-batches would leave a slot idle for a group, a few slots more let another chunk follow at once.
TEST(MemoryPlan, DeepInterleavedPipelinesLoseLittle) {
  Config config = mapped(1, 8, 1, 40);
  config.parallel.virtual_pipeline_model_parallel_size = 5;
  config.train.global_batch_size = 64;
  config.train.micro_batch_size = 1;
  config.train.seq_length = 256;
  const Built built = build(config);
  for (size_t stage = 0; stage < built.programs.plans.size(); ++stage) {
    const MemoryPlan& plan = built.programs.plans[stage];
    EXPECT_LT(static_cast<double>(plan.arena_bytes), 1.15 * static_cast<double>(plan.peak_live_bytes)) << stage;
  }
}

// The stage that needs most decides whether a model fits. Later ones hold fewer micro-batches in slots of as long a
// period: what they lose does not reach it.
TEST(MemoryPlan, TheFullestStageOfALargeModelLosesLittle) {
  Config config;
  config.model.name = "llama3-70b";
  config.precision.recipe = Recipe::kFp8Current;
  config.train.seq_length = 8192;
  config.train.global_batch_size = 256;
  config.parallel.gpus = 64;
  config.parallel.tensor_model_parallel_size = 4;
  config.parallel.pipeline_model_parallel_size = 8;
  config.parallel.virtual_pipeline_model_parallel_size = 5;
  const Built built = build(config);
  const MemoryPlan* fullest = &built.programs.plans[0];
  for (const MemoryPlan& plan : built.programs.plans)
    if (plan.arena_bytes > fullest->arena_bytes) fullest = &plan;
  EXPECT_LT(static_cast<double>(fullest->arena_bytes), 1.02 * static_cast<double>(fullest->peak_live_bytes));
}

TEST(MemoryPlan, ViewsLieInTheirStorage) {
  const Built built = build(mapped(2, 2, 1));
  const Program& program = built.programs.programs[1];
  const MemoryPlan& plan = built.programs.plans[1];
  int views = 0;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (t.view_of == kNoTensor) continue;
    ++views;
    for (int slot = 0; slot < (t.scope == Scope::kMicroBatch ? t.ring : 1); ++slot)
      EXPECT_EQ(plan.offset(program, static_cast<TensorId>(i), slot),
                plan.offset(program, t.view_of, slot) + t.view_offset_bytes);
  }
  EXPECT_GT(views, 10);
}

TEST(MemoryPlan, AStepWithoutOpsNeedsNothing) {
  const MemoryPlan plan = plan_memory(Program{});
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(plan.peak_live_bytes, 0);
}

TEST(MemoryPlan, SlabsShareNoBytesAndTakeMoreThanOneRange) {
  const Built built = build(mapped(2, 2, 1));
  for (size_t c = 0; c < built.programs.programs.size(); ++c) {
    const Program& program = built.programs.programs[c];
    const MemoryPlan slabs = plan_memory(program, {.one_range = false});
    EXPECT_GT(slabs.arena_bytes, built.programs.plans[c].arena_bytes);
    EXPECT_EQ(slabs.peak_live_bytes, built.programs.plans[c].peak_live_bytes);
    std::array<int64_t, kCategories> begin{};
    int64_t at = 0;
    for (size_t k = 0; k < begin.size(); ++k) begin[k] = at, at += slabs.slab_bytes[k];
    EXPECT_EQ(at, slabs.arena_bytes);
    for (const LiveBuffer& buffer : slabs.buffers) {
      const auto k = static_cast<size_t>(program.tensor(buffer.tensor).category);
      EXPECT_GE(buffer.offset, begin[k]);
      EXPECT_LE(buffer.offset + buffer.bytes, begin[k] + slabs.slab_bytes[k]);
    }
    expect_disjoint(program, slabs, unroll(program));
  }
}

TEST(MemoryPlan, KeptCommunicationBuffersRaiseThePeak) {
  const Built built = build(mapped(2, 1, 1));
  const Program& program = built.programs.programs[0];
  const MemoryPlan kept = plan_memory(program, {.release_comm = false});
  EXPECT_GT(kept.peak_live_bytes, built.programs.plans[0].peak_live_bytes);
  EXPECT_GT(kept.peak_by_category[static_cast<size_t>(Category::kComm)],
            built.programs.plans[0].peak_by_category[static_cast<size_t>(Category::kComm)]);
  expect_disjoint(program, kept, unroll(program));
}

TEST(CheckFits, NamesTheLargestLiveTensorsAndTheKnobs) {
  const Built built = build(mapped(1, 2, 1));
  const Program& program = built.programs.programs[0];
  const MemoryPlan& plan = built.programs.plans[0];
  EXPECT_TRUE(check_fits(program, plan, plan.arena_bytes).has_value());
  const Status refused = check_fits(program, plan, plan.arena_bytes - 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  // Weights, main gradients and both moments lead in a model this small.
  for (const char* name : {"bucket0.main_grads", "bucket0.weights", "optimizer.bucket0.exp_avg"})
    EXPECT_NE(refused.error().what.find(name), std::string::npos) << refused.error().what;
  EXPECT_NE(refused.error().hint.find("moments take "), std::string::npos) << refused.error().hint;
  EXPECT_NE(refused.error().hint.find("parallel.use_distributed_optimizer"), std::string::npos) << refused.error().hint;
}

TEST(CheckFits, TellsWhatRoundsToTheSameToTheByte) {
  const Built built = build(mapped(1, 2, 1));
  const MemoryPlan& plan = built.programs.plans[0];
  const auto what = [&](int64_t there) { return check_fits(built.programs.programs[0], plan, there).error().what; };
  const int64_t needed = plan.device_bytes();
  const std::string close =
      "the step needs " + std::to_string(needed) + " B and there are " + std::to_string(needed - 1) + " B; ";
  EXPECT_TRUE(what(needed - 1).starts_with(close)) << what(needed - 1);
  const std::string far = "the step needs " + format_bytes(static_cast<double>(needed)) + " and there are " +
                          format_bytes(static_cast<double>(needed / 2)) + "; ";
  EXPECT_TRUE(what(needed / 2).starts_with(far)) << what(needed / 2);
}

TEST(CheckFits, AdvisesNothingThatIsDone) {
  const Built built = build(mapped(1, 2, 1));
  const auto hint = [&](const Lowerable& lowerable) {
    const Status refused = check_fits(built.programs.programs[1], built.programs.plans[1], 1, lowerable);
    return refused ? "" : refused.error().hint;
  };
  EXPECT_NE(hint({}).find("parallel.use_distributed_optimizer"), std::string::npos) << hint({});
  EXPECT_EQ(hint({.optimizer_unsharded = false}).find("use_distributed_optimizer"), std::string::npos);
  Config config = mapped(1, 4, 1);
  config.train.seq_length = 512;
  const Built large = build(config);
  const auto of_activations = [&](const Lowerable& lowerable) {
    return check_fits(large.programs.programs[0], large.programs.plans[0], 1, lowerable).error().hint;
  };
  EXPECT_NE(of_activations({}).find("train.micro_batch_size"), std::string::npos) << of_activations({});
  const std::string least = of_activations({.micro_batch = false, .activations = false});
  EXPECT_EQ(least.find("train.micro_batch_size"), std::string::npos) << least;
  EXPECT_EQ(least.find("memory.recompute_granularity"), std::string::npos) << least;
  EXPECT_NE(least.find("train.seq_length"), std::string::npos) << least;
}

TEST(CheckFits, CountsATensorWithAllItsLiveSlots) {
  Config config = mapped(1, 4, 1);
  config.train.seq_length = 512;
  const Built built = build(config);
  const Status refused = check_fits(built.programs.programs[0], built.programs.plans[0], 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find("layers.0.mlp.fc1.out (4 micro-batches)"), std::string::npos)
      << refused.error().what;
  EXPECT_NE(refused.error().hint.find("activations take "), std::string::npos) << refused.error().hint;
  EXPECT_NE(refused.error().hint.find("memory.recompute_granularity"), std::string::npos) << refused.error().hint;
}

}  // namespace
}  // namespace mbb::trainer
