// Overlapped tensor-parallel collectives: the same numbers and bytes, more of them hidden, and the rules of the table.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "trainer/models/small_families.h"
#include "trainer/program/explain.h"
#include "trainer/run/equal_training_test.h"
#include "trainer/run/unit_times_test.h"

namespace mbb::trainer {
namespace {

constexpr const char* kSplitSites[] = {"qkv_fprop", "qkv_dgrad", "proj_fprop", "proj_dgrad",
                                       "fc1_fprop", "fc1_dgrad", "fc2_fprop",  "fc2_dgrad"};
constexpr const char* kBulkSites[] = {"qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"};

Config small(const char* family, int tp) {
  Config c = config_of(family_of(family));
  c.train.train_iters = 3;
  c.parallel.tensor_model_parallel_size = tp;
  c.model.num_query_groups = 4;
  return c;
}

Config overlapped(Config c, KnobMap cfg) {
  c.tp_overlap.tp_comm_overlap = true;
  c.tp_overlap.tp_comm_overlap_cfg = std::move(cfg);
  return c;
}

// Only this site overlaps.
KnobMap only(const std::string& site, const std::string& method) {
  KnobMap cfg;
  for (const char* name : {"qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad", "fc1_fprop", "fc1_dgrad",
                           "fc1_wgrad", "fc2_fprop", "fc2_dgrad"})
    cfg[fmt::format("{}.method", name)] = name == site ? method : "none";
  if (method == "pipeline") cfg[site + ".num_splits"] = "2";
  return cfg;
}

struct Programs {
  Layout layout;
  StepPrograms programs;
};

Programs build(const Config& config) {
  auto layout = resolve(config);
  EXPECT_TRUE(layout.has_value()) << (layout ? "" : format(layout.error()));
  auto programs = build_programs(*layout);
  EXPECT_TRUE(programs.has_value()) << (programs ? "" : format(programs.error()));
  return {std::move(*layout), std::move(*programs)};
}

int64_t ops_with(const Programs& built, std::string_view part) {
  int64_t found = 0;
  for (const Segment& segment : built.programs.programs[0].segments)
    for (const Op& op : segment.ops) found += op.path.find(part) != std::string::npos ? 1 : 0;
  return found;
}

double tp_bytes(const Programs& built) {
  const Explain explained = explain(built.layout, built.programs);
  for (const CommRow& row : explained.classes[0].comm)
    if (row.group == GroupKind::kTp) return row.wire_bytes;
  return 0;
}

void expect_same_training(const Config& changed, const Trained& plain, double tolerance) {
  const auto trained = train_and_collect(changed);
  ASSERT_TRUE(trained.has_value()) << format(trained.error());
  for (size_t i = 0; i < plain.steps.size(); ++i)
    EXPECT_NEAR(trained->steps[i].loss, plain.steps[i].loss, tolerance * plain.steps[i].loss) << "step " << i;
  expect_equal_gradients(trained->gradients[0], plain.gradients[0], tolerance);
}

TEST(TpOverlap, EverySiteAndMethodKeepsNumbersAndBytes) {
  for (const int tp : {2, 4}) {
    const Config base = small("llama31", tp);
    const auto plain = train_and_collect(base);
    ASSERT_TRUE(plain.has_value()) << format(plain.error());
    const double bytes = tp_bytes(build(base));
    const auto check = [&](const std::string& site, const std::string& method, const std::string& mark) {
      SCOPED_TRACE(fmt::format("tp{} {} {}", tp, site, method));
      const Config changed = overlapped(base, only(site, method));
      const Programs built = build(changed);
      EXPECT_EQ(tp_bytes(built), bytes);
      const Explain costs = explain(built.layout, built.programs);
      EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
      if (!mark.empty()) {
        EXPECT_GT(ops_with(built, mark), 0);
      }
      EXPECT_NE(program_hash(built.programs), program_hash(build(base).programs));
      expect_same_training(changed, *plain, 1e-5);
    };
    for (const char* site : kSplitSites) {
      check(site, "pipeline", ".split1");
      check(site, "ring_exchange", ".ring1");
    }
    for (const char* site : kBulkSites) check(site, "bulk", "");
  }
}

TEST(TpOverlap, DefaultsTrainEveryDenseFamilyAlike) {
  for (const char* family : {"gpt_untied", "qwen3", "nemotron", "t5"}) {
    SCOPED_TRACE(family);
    const Config base = small(family, 2);
    const auto plain = train_and_collect(base);
    ASSERT_TRUE(plain.has_value()) << format(plain.error());
    expect_same_training(overlapped(base, {}), *plain, 1e-5);
  }
}

// An encoder's sequence has rows of its own: parts must divide them as well as the decoder's, and all are computed.
TEST(TpOverlap, PartsCoverTheRowsOfBothSequences) {
  Config base = small("t5", 2);
  base.train.seq_length = 16;
  for (const int cp : {1, 2}) {
    base.parallel.context_parallel_size = cp;
    base.train.encoder_seq_length = 12 * cp;
    for (const int encoder_tp : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("cp{} encoder tp{}", cp, encoder_tp));
      base.parallel.encoder_pipeline_model_parallel_size = encoder_tp > 0 ? 1 : 0;
      base.parallel.encoder_tensor_model_parallel_size = encoder_tp;
      const auto plain = train_and_collect(base);
      ASSERT_TRUE(plain.has_value()) << format(plain.error());
      expect_same_training(overlapped(base, {}), *plain, 1e-5);
    }
  }
}

// Quantized products run beside whole collectives; nothing is added in another order.
TEST(TpOverlap, QuantizedProductsCoverWhatTheyDoNotNeed) {
  for (const Recipe recipe : {Recipe::kFp8Current, Recipe::kFp8Delayed, Recipe::kMxfp8}) {
    SCOPED_TRACE(static_cast<int>(recipe));
    Config base = small("llama31", 2);
    base.precision.recipe = recipe;
    base.train.train_iters = 2;
    if (recipe == Recipe::kMxfp8) {
      base.model.hidden_size = base.model.ffn_hidden_size = 128;
      base.model.kv_channels = 32;
      base.train.seq_length = 32;
    }
    const auto plain = train_and_collect(base);
    ASSERT_TRUE(plain.has_value()) << format(plain.error());
    const Programs before = build(base);
    expect_same_training(overlapped(base, {}), *plain, 0);
    for (const char* site : kBulkSites) {
      if (recipe != Recipe::kFp8Current) break;
      SCOPED_TRACE(site);
      const Config changed = overlapped(base, only(site, "bulk"));
      const Programs built = build(changed);
      EXPECT_NE(program_hash(built.programs), program_hash(before.programs));
      EXPECT_EQ(tp_bytes(built), tp_bytes(before));
      expect_same_training(changed, *plain, 0);
    }
  }
}

// Products of rows are the whole product's rows, and what is summed over ranks is summed in their order, but for a
// ring of four: there the sums' roundings differ, and codes of values near a boundary with them. Codes travel where
// operands are gathered.
TEST(TpOverlap, SplitQuantizedProductsAreTheWholeOnes) {
  for (const Recipe recipe : {Recipe::kFp8Current, Recipe::kFp8Delayed}) {
    for (const int tp : {2, 4}) {
      Config base = small("llama31", tp);
      base.precision.recipe = recipe;
      const auto plain = train_and_collect(base);
      ASSERT_TRUE(plain.has_value()) << format(plain.error());
      const double bytes = tp_bytes(build(base));
      for (const char* site : kSplitSites) {
        for (const char* method : {"pipeline", "ring_exchange"}) {
          SCOPED_TRACE(fmt::format("recipe {} tp{} {} {}", static_cast<int>(recipe), tp, site, method));
          const Config changed = overlapped(base, only(site, method));
          const Programs built = build(changed);
          const Explain costs = explain(built.layout, built.programs);
          EXPECT_DOUBLE_EQ(costs.model_flops, costs.closed_form_flops);
          EXPECT_GT(ops_with(built, std::string_view(method) == "pipeline" ? ".split1" : ".ring1"), 0);
          const std::string_view name = site;
          const bool gathers =
              name == "qkv_fprop" || name == "fc1_fprop" || name == "proj_dgrad" || name == "fc2_dgrad";
          if (gathers)
            EXPECT_LT(tp_bytes(built), bytes);
          else
            EXPECT_EQ(tp_bytes(built), bytes);
          const bool reordered = !gathers && tp > 2 && std::string_view(method) == "ring_exchange";
          expect_same_training(changed, *plain, reordered ? 1e-2 : 0);
        }
      }
    }
  }
}

// The example of the suite, and every site of it.
TEST(TpOverlap, ALayerPartStandsForItsSites) {
  Config base = small("llama31", 2);
  base.precision.recipe = Recipe::kFp8Current;
  const auto sites = [&](const KnobMap& cfg) {
    const Layout layout = build(overlapped(base, cfg)).layout;
    std::map<std::string, std::pair<std::string, int>> found;
    for (const TpOverlapSite& site : layout.tp_overlap) found[site.name] = {name(site.method), site.num_splits};
    return found;
  };
  auto found = sites({{"proj.method", "pipeline"}, {"proj.num_splits", "4"}});
  EXPECT_EQ(found["proj_fprop"], (std::pair<std::string, int>{"pipeline", 4}));
  EXPECT_EQ(found["proj_dgrad"], (std::pair<std::string, int>{"pipeline", 4}));
  EXPECT_EQ(found["fc2_fprop"].first, "none");
  found = sites({{"proj.method", "pipeline"},
                 {"proj.num_splits", "4"},
                 {"proj_fprop.num_splits", "2"},
                 {"proj_dgrad.method", "none"}});
  EXPECT_EQ(found["proj_fprop"], (std::pair<std::string, int>{"pipeline", 2}));
  EXPECT_EQ(found["proj_dgrad"].first, "none");
  found = sites({{"qkv.method", "bulk"}, {"fc1.method", "ring_exchange"}});
  EXPECT_EQ(found["qkv_fprop"].first, "none");
  EXPECT_EQ(found["qkv_dgrad"].first, "bulk");
  EXPECT_EQ(found["qkv_wgrad"].first, "bulk");
  EXPECT_EQ(found["fc1_fprop"].first, "ring_exchange");
  EXPECT_EQ(found["fc1_dgrad"].first, "ring_exchange");
  EXPECT_EQ(found["fc1_wgrad"].first, "none");
}

// Parts run again keep their FLOPs out of the model's, whole or split.
TEST(TpOverlap, RecomputedProductsThatAreSplitAreNoModelFlops) {
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Current}) {
    Config c = small("llama31", 2);
    c.precision.recipe = recipe;
    c.memory.recompute_granularity = RecomputeGranularity::kFull;
    const Programs whole = build(c), split = build(overlapped(c, only("fc1_fprop", "ring_exchange")));
    const Explain before = explain(whole.layout, whole.programs), after = explain(split.layout, split.programs);
    EXPECT_GT(before.recompute_flops, 0);
    EXPECT_DOUBLE_EQ(after.model_flops, before.model_flops);
    EXPECT_DOUBLE_EQ(after.recompute_flops, before.recompute_flops);
  }
}

UnitTimes timed(const Config& config) {
  const Programs built = build(config);
  return unit_times(built.layout, built.programs, profiler::SpanKind::kCommTp, 4);
}

TEST(TpOverlap, ExposedTransfersFall) {
  Config base = small("llama31", 4);
  base.train.seq_length = 64;
  const UnitTimes plain = timed(base);
  EXPECT_GT(plain.exposed, 0);
  const auto falls = [&](const std::string& site, const std::string& method) {
    const UnitTimes hidden = timed(overlapped(base, only(site, method)));
    EXPECT_LT(hidden.exposed, plain.exposed) << site << " " << method;
    EXPECT_LT(hidden.step, plain.step) << site << " " << method;
  };
  for (const char* site : {"qkv_fprop", "proj_fprop", "proj_dgrad", "fc1_fprop", "fc2_fprop", "fc2_dgrad"}) {
    falls(site, "pipeline");
    falls(site, "ring_exchange");
  }
  const UnitTimes all = timed(overlapped(base, {}));
  EXPECT_LT(all.exposed, plain.exposed * 6 / 10);
}

TEST(TpOverlap, Fp8PartsMoveFewerBytesAndStayNear) {
  const Config base = overlapped(small("llama31", 2), only("proj_fprop", "ring_exchange"));
  KnobMap cfg = only("proj_fprop", "ring_exchange");
  cfg["proj_fprop.fp8_buf"] = "true";
  const Config narrow = overlapped(small("llama31", 2), cfg);
  EXPECT_LT(tp_bytes(build(narrow)), tp_bytes(build(base)));
  const auto exact = train_and_collect(base);
  const auto rounded = train_and_collect(narrow);
  ASSERT_TRUE(exact.has_value() && rounded.has_value());
  // E4M3 keeps four bits of a number: an error of at most 1/16 of half of the branch's sum.
  for (size_t i = 0; i < exact->steps.size(); ++i) {
    EXPECT_NEAR(rounded->steps[i].loss, exact->steps[i].loss, 1e-2 * exact->steps[i].loss);
    EXPECT_NE(rounded->steps[i].loss, exact->steps[i].loss);
  }
}

// Bytes of the plan that an op's first result takes.
std::pair<int64_t, int64_t> bytes_of_result(const Programs& built, std::string_view path_end) {
  const Program& program = built.programs.programs[0];
  for (const Segment& segment : program.segments)
    for (const Op& op : segment.ops)
      if (op.path.ends_with(path_end)) {
        const int64_t at = built.programs.plans[0].offset(program, op.out[0], 0);
        return {at, at + program.tensor(op.out[0]).bytes()};
      }
  ADD_FAILURE() << "no op ends with " << path_end;
  return {};
}

// A part is reduced while the next is computed, which shared memory would forbid.
TEST(TpOverlap, APartAndTheNextLieApart) {
  for (const auto& [method, first, next] : {std::tuple{"pipeline", ".fc2.fwd.split0", ".fc2.fwd.split1"},
                                            {"pipeline", ".fc2.fwd.split1", ".fc2.fwd.split2"},
                                            {"ring_exchange", ".fc2.fwd.ring1", ".fc2.fwd.ring2"},
                                            {"ring_exchange", ".fc2.fwd.ring3", ".fc2.fwd.ring0"}}) {
    KnobMap cfg = only("fc2_fprop", method);
    if (std::string_view(method) == "pipeline") cfg["fc2_fprop.num_splits"] = "4";
    const Programs built = build(overlapped(small("llama31", 4), cfg));
    const auto a = bytes_of_result(built, first), b = bytes_of_result(built, next);
    EXPECT_TRUE(a.second <= b.first || b.second <= a.first) << first;
  }
}

TEST(TpOverlap, SmsReachTheOps) {
  KnobMap cfg = only("fc2_fprop", "pipeline");
  cfg["fc2_fprop.num_sm"] = "8";
  cfg["fc2_fprop.cga_size"] = "4";
  Config c = overlapped(small("llama31", 2), cfg);
  c.tp_overlap.fwd_layernorm_sm_margin = 5;
  c.tp_overlap.bwd_layernorm_sm_margin = 7;
  const Programs built = build(c);
  int64_t products = 0, scatters = 0, norms = 0;
  for (const Segment& segment : built.programs.programs[0].segments) {
    for (const Op& op : segment.ops) {
      if (const auto* norm = std::get_if<NormAttrs>(&op.attrs)) {
        EXPECT_EQ(norm->sm_margin, op.kind->name == "rmsnorm" ? 5 : 7) << op.path;
        ++norms;
      }
      if (op.path.find("fc2") == std::string::npos || op.path.find(".split") == std::string::npos) continue;
      if (const auto* gemm = std::get_if<GemmRowsAttrs>(&op.attrs)) {
        EXPECT_EQ(gemm->gemm.sm_margin, 8);
        ++products;
      }
      if (const auto* comm = std::get_if<CommAttrs>(&op.attrs)) {
        EXPECT_EQ(comm->num_sm, 8);
        EXPECT_EQ(comm->cga_size, 4);
        ++scatters;
      }
    }
  }
  EXPECT_EQ(products, 2 * 2);
  EXPECT_EQ(scatters, 2 * 2);
  EXPECT_GT(norms, 0);
}

// A ring's messages go by copy engines and products keep all SMs, unless SMs are named.
TEST(TpOverlap, RingsTakeNoSmsUnlessSomeAreGiven) {
  const auto ring = [](const KnobMap& more) {
    KnobMap cfg = only("fc1_fprop", "ring_exchange");
    for (const auto& [entry, value] : more) cfg[entry] = value;
    const Programs built = build(overlapped(small("llama31", 2), cfg));
    std::pair<bool, int> found{false, -1};  // copy engines, margin
    for (const Segment& segment : built.programs.programs[0].segments)
      for (const Op& op : segment.ops) {
        if (op.path.find(".ring") == std::string::npos) continue;
        if (const auto* comm = std::get_if<CommAttrs>(&op.attrs)) found.first = comm->copy_engines;
        if (const auto* gemm = std::get_if<GemmRowsAttrs>(&op.attrs)) found.second = gemm->gemm.sm_margin;
      }
    return found;
  };
  EXPECT_EQ(ring({}), (std::pair{true, 0}));
  EXPECT_EQ(ring({{"fc1_fprop.use_ce", "false"}}), (std::pair{false, 4}));
  EXPECT_EQ(ring({{"fc1_fprop.num_sm", "8"}}), (std::pair{false, 8}));
}

std::string refusal(const Config& config) {
  const auto layout = resolve(config);
  return layout ? "accepted" : layout.error().what;
}

TEST(TpOverlap, RulesAreNamed) {
  const Config base = small("llama31", 2);
  const auto with = [&](const char* entry, const char* value) {
    return refusal(overlapped(base, KnobMap{{entry, value}}));
  };
  EXPECT_EQ(refusal(overlapped(base, {})), "accepted");
  EXPECT_NE(with("mlp.method", "bulk").find("tp_comm_overlap_cfg.mlp.method: no such site"), std::string::npos);
  EXPECT_NE(with("proj.method", "bulk").find("tp_comm_overlap_cfg.proj.method: no product"), std::string::npos);
  EXPECT_NE(with("proj_fprop.method", "bulk").find("cannot be bulk"), std::string::npos);
  EXPECT_NE(with("qkv_wgrad.method", "pipeline").find("stays whole"), std::string::npos);
  EXPECT_NE(with("proj_fprop.method", "fast").find("no method 'fast'"), std::string::npos);
  EXPECT_NE(with("proj_fprop.cga_size", "5").find("above 4"), std::string::npos);
  EXPECT_NE(refusal(overlapped(base, KnobMap{{"fc1_fprop.cga_size", "3"}, {"fc1_fprop.num_sm", "2"}}))
                .find("above num_sm = 2"),
            std::string::npos);
  EXPECT_EQ(with("fc1_fprop.num_sm", "130"), "accepted");
  EXPECT_NE(with("fc1_fprop.num_sm", "131").find("fc1_fprop.num_sm: 131 SMs leave no 2 of a device's 132"),
            std::string::npos);
  Config sides = overlapped(base, KnobMap{{"fc1_fprop.num_sm", "120"}});
  sides.host.side_sms = 16;
  EXPECT_NE(refusal(sides).find("fc1_fprop.num_sm: 120 SMs and host.side_sms = 16"), std::string::npos)
      << refusal(sides);
  EXPECT_NE(with("proj_fprop.num_splits", "3").find("does not divide the 8 rows"), std::string::npos);
  Config odd = base;
  odd.train.seq_length = 14;  // 7 rows a rank: no usual number of parts divides them
  EXPECT_NE(refusal(overlapped(odd, {})).find("proj_fprop.num_splits: 4 does not divide the 7 rows"),
            std::string::npos);
  EXPECT_EQ(refusal(overlapped(odd, KnobMap{{"proj_fprop.num_splits", "7"}, {"fc2_fprop.num_splits", "7"}})),
            "accepted");
  EXPECT_NE(refusal(overlapped(small("t5", 2), KnobMap{{"proj_fprop.num_splits", "4"}}))
                .find("proj_fprop.num_splits: 4 does not divide the 6 rows of the encoder's sequence"),
            std::string::npos);
  EXPECT_NE(with("fc1_fprop.num_splits", "4").find("has 2 steps"), std::string::npos);
  EXPECT_NE(with("proj_fprop.fp8_buf", "true").find("can travel in FP8"), std::string::npos);
  EXPECT_NE(with("proj_fprop.speed", "9").find("no such field"), std::string::npos);
  EXPECT_NE(with("proj_fprop.use_ce", "true").find("use_ce: pipeline adds or gathers"), std::string::npos);
  EXPECT_NE(refusal(overlapped(base, KnobMap{{"fc1_fprop.use_ce", "true"}, {"fc1_fprop.num_sm", "8"}}))
                .find("use_ce: copy engines take no SMs"),
            std::string::npos);
  EXPECT_NE(refusal(overlapped(base, KnobMap{{"fc1_dgrad.method", "pipeline"}, {"fc1_wgrad.method", "bulk"}}))
                .find("no reduce-scatter to cover"),
            std::string::npos);
  Config fp8 = overlapped(base, KnobMap{{"proj_fprop.method", "pipeline"}});
  for (const auto& [recipe, named] : {std::pair{Recipe::kFp8Blockwise, "fp8_blockwise"}, {Recipe::kMxfp8, "mxfp8"}}) {
    fp8.precision.recipe = recipe;
    EXPECT_NE(refusal(fp8).find(
                  fmt::format("proj_fprop.method: pipeline splits a product, and precision.recipe = {}", named)),
              std::string::npos)
        << refusal(fp8);
  }
  fp8.precision.recipe = Recipe::kFp8Current;
  EXPECT_EQ(refusal(fp8), "accepted");
  fp8.tp_overlap.tp_comm_overlap_cfg = {{"fc1_dgrad.set_sm_margin", "true"}};
  EXPECT_NE(refusal(fp8).find("fc1_dgrad.set_sm_margin: whole products"), std::string::npos) << refusal(fp8);
  fp8.tp_overlap.tp_comm_overlap_cfg = {{"fc1_fprop.num_sm", "2"}};
  EXPECT_NE(refusal(fp8).find("fc1_fprop.method: none, and another field"), std::string::npos) << refusal(fp8);
  Config apart = overlapped(base, {});
  apart.parallel.sequence_parallel = false;
  EXPECT_NE(refusal(apart).find("without sequence parallelism"), std::string::npos);
  Config off = overlapped(base, KnobMap{{"fc1_dgrad.method", "bulk"}});
  off.tp_overlap.tp_comm_overlap = false;
  EXPECT_NE(refusal(off).find("without overlap.tp_comm_overlap = true"), std::string::npos);
}

}  // namespace
}  // namespace mbb::trainer
