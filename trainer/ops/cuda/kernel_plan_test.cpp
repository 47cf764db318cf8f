// Launch plans and GEMM problems: pure functions, no GPU.
#include "trainer/ops/cuda/kernel_plan.h"

#include <gtest/gtest.h>

#include "trainer/ops/cuda/gemm.h"

namespace mbb::trainer::cuda {
namespace {

TEST(KernelPlan, NormRowsFitTheBlock) {
  for (const int64_t cols : {64, 1600, 4096, 8192, 16384, 32768}) {
    const auto plan = plan_norm_forward({100000, cols}, Element::kBf16, Element::kBf16, false, {132, 0});
    ASSERT_TRUE(plan.has_value());
    EXPECT_GE(int64_t{plan->block} / plan->rows * plan->vectors * 8, cols);
    EXPECT_LE(plan->block, 1024);
    EXPECT_EQ(plan->rows, cols == 64 ? 4 : 1);
    EXPECT_EQ(plan->vectors, cols == 1600 || cols == 4096 ? 2 : cols == 8192 ? 1 : 4);
  }
}

TEST(KernelPlan, NormBlocksTakeARowEachOrLeaveTheMarginFree) {
  const auto grid = [](int64_t cols, bool residual, int margin) {
    return plan_norm_forward({100000, cols}, Element::kBf16, Element::kBf16, residual, {132, margin})->grid_x;
  };
  EXPECT_EQ(grid(4096, false, 0), 100000);
  EXPECT_EQ(grid(4096, false, 16), 116 * 4);
  EXPECT_EQ(grid(7168, true, 0), 100000);
  EXPECT_EQ(grid(7168, false, 0), 132 * 2);
  EXPECT_EQ(grid(128, false, 0), 25000);
  EXPECT_EQ(grid(128, false, 16), 116 * 64);
  const auto layer = plan_norm_forward({100000, 7168}, Element::kBf16, Element::kBf16, false, {132, 0}, true);
  EXPECT_EQ(layer->grid_x, 100000);
  const auto vectors = [](int64_t cols) {
    return plan_norm_forward({100000, cols}, Element::kBf16, Element::kBf16, false, {132, 0}, true)->vectors;
  };
  EXPECT_EQ(vectors(6144), 3);
  EXPECT_EQ(vectors(7168), 2);
}

TEST(KernelPlan, SmMarginShrinksThePersistentGrid) {
  const auto all = plan_norm_backward({100000, 4096}, Element::kBf16, true, {132, 0});
  const auto fewer = plan_norm_backward({100000, 4096}, Element::kBf16, true, {132, 16});
  ASSERT_TRUE(all && fewer);
  EXPECT_EQ(all->grid_x * 116, fewer->grid_x * 132);
}

TEST(KernelPlan, NormBackwardsRowsOnTheSmAndOnTheirWay) {
  const auto plan = [](int64_t cols, Element e, bool layer) {
    return *plan_norm_backward({100000, cols}, e, false, {132, 0}, layer);
  };
  const auto rows = [&](int64_t cols, Element e) {
    const KernelPlan p = plan(cols, e, true);
    return p.rows * p.grid_x / 132;
  };
  EXPECT_EQ(rows(768, Element::kBf16), 16);  // in pairs
  EXPECT_EQ(rows(768, Element::kF32), 10);
  EXPECT_EQ(rows(4096, Element::kBf16), 2);
  EXPECT_EQ(rows(6144, Element::kBf16), 1);
  EXPECT_EQ(rows(8192, Element::kBf16), 1);
  EXPECT_EQ(rows(16384, Element::kBf16), 2);  // of four vectors a thread, straight to registers
  EXPECT_EQ(plan(16384, Element::kBf16, true).stages, 0);
  EXPECT_EQ(plan(6144, Element::kBf16, true).stages, 3);  // alone on the SM
  EXPECT_EQ(plan(4096, Element::kBf16, true).stages, 4);
  for (const Element e : {Element::kBf16, Element::kF32}) {
    for (const bool layer : {false, true}) {
      for (const int64_t cols : {8, 64, 768, 1032, 1600, 4096, 6144, 8192}) {
        const KernelPlan p = plan(cols, e, layer);
        const int64_t resident = (p.grid_x + 131) / 132;
        EXPECT_GE(p.stages, 2) << cols;
        EXPECT_LE(resident * (p.smem_bytes + 2048), 228 << 10) << cols;
      }
    }
  }
}

TEST(KernelPlan, BadShapesAreErrorsThatNameTheRule) {
  const auto odd = plan_norm_forward({10, 100}, Element::kBf16, Element::kBf16, false, {});
  ASSERT_FALSE(odd.has_value());
  EXPECT_NE(odd.error().what.find("multiple of 8"), std::string::npos);
  AttentionShape shape{1, 128, 8, 3, 128, true};
  EXPECT_FALSE(plan_flash_forward(shape).has_value());
  shape.kv_heads = 2, shape.head_dim = 96;
  EXPECT_FALSE(plan_flash_forward(shape).has_value());
  shape.head_dim = 128;
  EXPECT_TRUE(plan_flash_forward(shape).has_value());
  shape.batch = 65536 / shape.heads;
  const auto many = plan_flash_backward_kv(shape);
  ASSERT_FALSE(many.has_value());
  EXPECT_NE(many.error().what.find("8192 sequences of 8 heads"), std::string::npos) << many.error().what;
  shape.batch = 1;
  shape.value_width = 64;
  const auto narrow = plan_flash_backward_kv(shape);
  ASSERT_FALSE(narrow.has_value());
  EXPECT_NE(narrow.error().what.find("heads of 128 and 64"), std::string::npos);
}

TEST(KernelPlan, QuantizeOnceFillsTwoBlocksAnSmOrSaysNone) {
  const auto grid = [](RowShape shape, int outputs, SharedMemory shared, Sms sms) {
    const auto plan = plan_quantize_once("q", shape, outputs, 4, shared, sms);
    return plan ? plan->grid_x : -1;
  };
  EXPECT_EQ(grid({8192, 4096}, 1, {}, {132, 0}), 264);
  EXPECT_EQ(grid({8192, 4096}, 1, {}, {132, 16}), 232);
  EXPECT_EQ(grid({256, 256}, 1, {}, {132, 0}), 4);  // never more blocks than tiles
  EXPECT_EQ(grid({256, 256}, 2, {}, {132, 0}), 8);
  EXPECT_EQ(grid({8192, 4096}, 1, {163 << 10, 164 << 10}, {108, 0}), 108);
  EXPECT_EQ(grid({8192, 4096}, 1, {99 << 10, 100 << 10}, {84, 0}), 0);
  EXPECT_EQ(grid({8190, 4096}, 1, {}, {132, 0}), -1);
}

TEST(KernelPlan, TwoLaunchesOfQuantizationWalkThenTakeATileABlock) {
  EXPECT_EQ(plan_amax("a", {1, 8192 * 4096}, 4, 2, {132, 0}).grid_x, 132 * 8);
  EXPECT_EQ(plan_amax("a", {1, 256 * 8 * 4 + 8}, 4, 2, {132, 0}).grid_x, 2);
  EXPECT_EQ(plan_amax("a", {1, 8}, 4, 2, {132, 0}).grid_x, 1);
  const auto one = plan_quantize("q", {144, 264}, 1, 4), two = plan_quantize("q", {144, 264}, 2, 10);
  ASSERT_TRUE(one.has_value() && two.has_value());
  EXPECT_EQ(one->grid_x, 2 * 3);
  EXPECT_EQ(two->grid_x, 2 * 5);  // 64 columns of two outputs
  EXPECT_FALSE(plan_quantize("q", {140, 264}, 1, 4).has_value());
}

TEST(KernelPlan, PrintsOneLine) {
  const auto plan = plan_norm_forward({8192, 4096}, Element::kBf16, Element::kBf16, false, {132, 0});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(format(*plan), "rmsnorm_forward grid 8192x1 block 256 vectors 2 smem 0 B, 134.3 MB");
}

TEST(GemmProblem, RolesHaveTheirForms) {
  const auto forward = linear_problem(GemmRole::kFprop, 8192, 4096, 6144, false, false);
  EXPECT_EQ(key(forward), "m8192 n6144 k4096 nt bf16 bf16 bf16 beta0");
  const auto dgrad = linear_problem(GemmRole::kDgrad, 8192, 4096, 6144, true, false);
  EXPECT_EQ(key(dgrad), "m8192 n4096 k6144 nt e5m2 e4m3 bf16 beta0");
  const auto wgrad = linear_problem(GemmRole::kWgrad, 8192, 4096, 6144, false, true);
  EXPECT_EQ(key(wgrad), "m6144 n4096 k8192 tn bf16 bf16 fp32 beta1");
  EXPECT_EQ(gemm_flops(forward), gemm_flops(wgrad));
}

TEST(AttentionFlops, CausalIsHalf) {
  EXPECT_DOUBLE_EQ(attention_forward_flops({1, 8192, 32, 8, 128, true}), 2.0 * 8192 * 8192 * 32 * 128);
  const AttentionShape latent{1, 4096, 128, 128, 192, true, 0, 128};
  EXPECT_DOUBLE_EQ(attention_forward_flops(latent), 1.0 * 4096 * 4096 * 128 * (192 + 128));
  EXPECT_EQ(latent.packed_row(), 128 * (192 + 192 + 128));
  EXPECT_EQ(latent.out_row(), 128 * 128);
}

TEST(KernelPlans, KeysThatStandApartHaveRowsOfTheirOwn) {
  AttentionShape shape{1, 4096, 32, 8, 128, false};
  EXPECT_EQ(shape.query_row(), shape.packed_row());
  EXPECT_EQ(shape.key_row(), shape.packed_row());
  EXPECT_EQ(shape.key_rows(), 4096);
  shape.keys = 2048;
  EXPECT_EQ(shape.query_row(), 32 * 128);
  EXPECT_EQ(shape.key_row(), 2 * 8 * 128);
  EXPECT_EQ(shape.key_rows(), 2048);
  EXPECT_FALSE(plan_flash_forward(shape).has_value());
}

TEST(KernelPlans, AProductLeavesSmsToACollective) {
  EXPECT_EQ(sms_beside(132, 0, 0), 0);
  EXPECT_EQ(sms_beside(132, 16, 0), 116);
  EXPECT_EQ(sms_beside(132, 1, 0), 130);
  EXPECT_EQ(sms_beside(132, 16, 100), 84);
  EXPECT_EQ(sms_beside(132, 64, 100), 36);
  EXPECT_EQ(sms_beside(132, 0, 100), 100);
  EXPECT_EQ(sms_beside(132, 140, 0), 2);
}

}  // namespace
}  // namespace mbb::trainer::cuda
