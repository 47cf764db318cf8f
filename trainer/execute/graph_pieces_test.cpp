// Scopes of CUDA graphs on the walk of real programs, and what is refused.
#include "trainer/execute/graph_pieces.h"

#include <gtest/gtest.h>

#include <set>

#include "trainer/models/small_families.h"
#include "trainer/program/walk.h"
#include "trainer/run/step_programs.h"

namespace mbb::trainer {
namespace {

struct Walked {
  StepPrograms programs;
  std::vector<GraphStep> steps;
};

Walked walk_of(Config c) {
  Walked w;
  w.programs = build_programs(resolve(c).value()).value();
  const Program& program = w.programs.programs[0];
  walk(program, [&](int index, const Call& call, int, const Op& op) {
    w.steps.push_back({op.path, index, program.segment(call).kind == SegmentKind::kOptimizer});
  });
  return w;
}

Config small(const char* model) {
  Config c;
  sizes(c, model, 2);
  c.train.global_batch_size = 2;
  return c;
}

std::vector<GraphPiece> pieces(const Walked& w, const char* scopes) {
  return graph_pieces(w.steps, parse_graph_scopes(scopes).value());
}

int captured(const std::vector<GraphPiece>& all) {
  int count = 0;
  for (const GraphPiece& piece : all) count += piece.captured ? 1 : 0;
  return count;
}

TEST(GraphPieces, CoverTheWalkInOrder) {
  const Walked w = walk_of(small("mixtral-8x7b"));
  for (const char* scopes : {"attn", "mlp", "moe_router", "attn,mlp", "attn,moe_router", "layer", "full_iteration"}) {
    size_t at = 0;
    for (const GraphPiece& piece : pieces(w, scopes)) {
      EXPECT_EQ(piece.begin, at) << scopes;
      EXPECT_LT(piece.begin, piece.end) << scopes;
      at = piece.end;
    }
    EXPECT_EQ(at, w.steps.size()) << scopes;
  }
  const auto none = graph_pieces(w.steps, {});
  EXPECT_EQ(captured(none), 0);
  EXPECT_EQ(none.size(), 2U) << "forward and backward, then the optimizer";
}

TEST(GraphPieces, AWholeStepIsTwoGraphs) {
  const Walked w = walk_of(small("llama3-8b"));
  const auto all = pieces(w, "full_iteration");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_TRUE(all[0].captured && all[1].captured);
  EXPECT_TRUE(w.steps[all[1].begin].optimizer);
  EXPECT_FALSE(w.steps[all[1].begin - 1].optimizer);
}

TEST(GraphPieces, LayersAreAGraphACall) {
  // 2 layers, 2 micro-batches, forward and backward.
  EXPECT_EQ(captured(pieces(walk_of(small("llama3-8b")), "layer")), 8);
  EXPECT_EQ(captured(pieces(walk_of(small("llama3-8b")), "attn")), 8);
  EXPECT_EQ(captured(pieces(walk_of(small("mixtral-8x7b")), "attn,mlp")), 16);
}

TEST(GraphPieces, HoldWhatTheirScopeSays) {
  const Walked w = walk_of(small("mixtral-8x7b"));
  const std::pair<const char*, const char*> held[] = {
      {"attn", ".attn."}, {"mlp", ".mlp."}, {"moe_router", ".mlp.router."}, {"layer", "layers."}};
  for (const auto& [scope, part] : held)
    for (const GraphPiece& piece : pieces(w, scope))
      for (size_t i = piece.begin; i < piece.end; ++i)
        EXPECT_EQ(piece.captured, w.steps[i].path.find(part) != std::string_view::npos && !w.steps[i].optimizer)
            << scope << " " << w.steps[i].path;
}

std::string refusal(const HostConfig& host, int64_t experts) {
  const Status status = check_graphs(host, experts);
  return status ? "" : format(status.error());
}

TEST(GraphPieces, RefusesWhatCannotApply) {
  HostConfig host;
  EXPECT_EQ(refusal(host, 0), "");
  host.cuda_graph_scope = "moe_router";
  EXPECT_EQ(refusal(host, 8), "");
  EXPECT_NE(refusal(host, 0).find("no experts"), std::string::npos) << refusal(host, 0);
  host.cuda_graph_scope = "attn,heads";
  EXPECT_NE(refusal(host, 0).find("host.cuda_graph_scope names heads"), std::string::npos) << refusal(host, 0);
  host.cuda_graph_scope = "layer,attn";
  EXPECT_NE(refusal(host, 0).find("layer holds the others"), std::string::npos) << refusal(host, 0);
  host.cuda_graph_scope = "attn";
  host.cuda_graph_impl = GraphImpl::kNone;
  EXPECT_NE(refusal(host, 0).find("no effect beside host.cuda_graph_impl"), std::string::npos) << refusal(host, 0);
  host.enable_cuda_graph = false;
  EXPECT_NE(refusal(host, 0).find("no effect beside host.enable_cuda_graph"), std::string::npos) << refusal(host, 0);
}

TEST(GraphPieces, AnExchangeWhoseCountsTheHostReadsIsInNoGraph) {
  HostConfig host;
  for (const char* scope : {"full_iteration", "layer", "mlp", "attn,mlp"}) {
    host.cuda_graph_scope = scope;
    const Status refused = check_graphs(host, 8, true);
    ASSERT_FALSE(refused) << scope;
    EXPECT_NE(refused.error().what.find("parallel.moe_exchange = counts"), std::string::npos) << refused.error().what;
    EXPECT_TRUE(check_graphs(host, 8, false)) << scope;
  }
  host.cuda_graph_scope = "attn,moe_router";
  EXPECT_TRUE(check_graphs(host, 8, true));
  host = {};
  host.enable_cuda_graph = false;
  EXPECT_TRUE(check_graphs(host, 8, true));
}

}  // namespace
}  // namespace mbb::trainer
