// Layout strings and slots: what lies where, and every refusal with its knob, rule and column.
#include "trainer/run/pipeline_layout.h"

#include <gtest/gtest.h>

namespace mbb::trainer {
namespace {

std::string refused(std::string_view text) {
  const auto chunks = parse_pipeline_layout(text);
  EXPECT_FALSE(chunks.has_value()) << text;
  return chunks ? "" : chunks.error().what;
}

TEST(PipelineLayout, ReadsLettersRepeatsAndParentheses) {
  const auto chunks = parse_pipeline_layout("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL");
  ASSERT_TRUE(chunks.has_value()) << chunks.error().what;
  ASSERT_EQ(chunks->size(), 40U);
  EXPECT_EQ(chunks->front(), (ChunkParts{true, 2, 0, false}));
  EXPECT_EQ((*chunks)[34], (ChunkParts{false, 2, 0, false}));
  EXPECT_EQ((*chunks)[35], (ChunkParts{false, 3, 0, false}));
  EXPECT_EQ(chunks->back(), (ChunkParts{false, 1, 0, true}));
  const auto other = parse_pipeline_layout("E | ((t,t|)*2 t)*2 | | m*2 L");
  ASSERT_TRUE(other.has_value()) << other.error().what;
  ASSERT_EQ(other->size(), 8U);
  EXPECT_EQ((*other)[0], (ChunkParts{true, 0, 0, false}));
  EXPECT_EQ((*other)[3], (ChunkParts{false, 3, 0, false}));
  EXPECT_EQ((*other)[6], (ChunkParts{false, 0, 0, false}));
  EXPECT_EQ((*other)[7], (ChunkParts{false, 0, 2, true}));
}

TEST(PipelineLayout, RefusalsNameTheColumn) {
  EXPECT_EQ(refused("Et|xL"), "parallel.pipeline_layout, column 4: 'x' is no part of a layout");
  EXPECT_EQ(refused("E(t|*2L"), "parallel.pipeline_layout, column 8: the end comes before the parenthesis closes");
  EXPECT_EQ(refused("Et)L"), "parallel.pipeline_layout, column 3: ')' closes a parenthesis that nobody opened");
  EXPECT_EQ(refused("Et*|L"), "parallel.pipeline_layout, column 4: '|' stands where a count belongs");
  EXPECT_EQ(refused("Et*L"), "parallel.pipeline_layout, column 4: 'L' stands where a count belongs");
  EXPECT_EQ(refused("Et*99999999999|L"), "parallel.pipeline_layout, column 9: '9' makes too many layers");
  EXPECT_EQ(refused("E((t*999)*999)*999L").substr(0, 24), "parallel.pipeline_layout");
  EXPECT_EQ(refused("tE|L"), "parallel.pipeline_layout, column 1: 't' is first, where the embedding E belongs");
  EXPECT_EQ(refused("EtE|L"), "parallel.pipeline_layout, column 3: 'E' comes after the model's first part");
  EXPECT_EQ(refused("EL|t"), "parallel.pipeline_layout, column 4: 't' comes after the loss");
  EXPECT_EQ(refused("Emt|L"), "parallel.pipeline_layout, column 3: 't' comes too late");
  EXPECT_NE(refused("(((((((((((((((((E)))))))))))))))))").find("nested too deeply"), std::string::npos);
}

Config with(int64_t layers, int64_t pp, int64_t vpp) {
  Config c;
  c.model.num_layers = layers;
  c.parallel.pipeline_model_parallel_size = pp;
  c.parallel.virtual_pipeline_model_parallel_size = vpp;
  return c;
}

TEST(Stages, Llama405bFills128SlotsWith126Layers) {
  Config c = with(0, 8, 8);
  c.model.name = "llama3.1-405b";
  c.parallel.account_for_embedding_in_pipeline_split = true;
  c.parallel.account_for_loss_in_pipeline_split = true;
  const auto l = resolve(c);
  ASSERT_TRUE(l.has_value()) << l.error().what;
  EXPECT_EQ(l->vpp, 8);
  int64_t next = 0;
  for (int chunk = 0; chunk < 8; ++chunk)
    for (int stage = 0; stage < 8; ++stage) {
      const Chunk& piece = l->stages[static_cast<size_t>(stage)][static_cast<size_t>(chunk)];
      const bool first = chunk == 0 && stage == 0;
      const bool last = chunk == 7 && stage == 7;
      EXPECT_EQ(piece.first_layer, next);
      EXPECT_EQ(piece.num_layers, first || last ? 1 : 2);
      EXPECT_EQ(piece.embedding, first);
      EXPECT_EQ(piece.head, last);
      next += piece.num_layers;
    }
  EXPECT_EQ(next, 126);
}

TEST(Stages, ALayoutStringSaysWhatLiesWhere) {
  Config c = with(7, 2, 1);
  c.parallel.pipeline_layout = "Et|t*3|t|ttL";
  const auto l = resolve(c);
  ASSERT_TRUE(l.has_value()) << l.error().what;
  EXPECT_EQ(l->vpp, 2);
  EXPECT_EQ(l->message_form, MessageForm::kOverlapped) << "an interleaved pipeline overlaps its messages";
  ASSERT_EQ(l->stages[0].size(), 2U);
  EXPECT_EQ(l->stages[1][0].first_layer, 1);
  EXPECT_EQ(l->stages[1][0].num_layers, 3);
  EXPECT_EQ(l->stages[0][1].first_layer, 4);
  EXPECT_EQ(l->stages[1][1].num_layers, 2);
  EXPECT_TRUE(l->stages[1][1].head);
}

TEST(Stages, RefusalsNameKnobAndRule) {
  const auto what = [](Config c, void (*change)(Config&)) {
    change(c);
    const auto l = resolve(c);
    EXPECT_FALSE(l.has_value());
    return l ? std::string() : l.error().what;
  };
  const auto says = [&](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(what(with(6, 4, 1), [](Config&) {}),
       "parallel.pipeline_model_parallel_size = 4 does not divide model.num_layers = 6");
  says(what(with(6, 2, 2), [](Config&) {}), "2 × 2 does not divide model.num_layers = 6");
  says(what(with(4, 1, 2), [](Config&) {}), "parallel.virtual_pipeline_model_parallel_size = 2 needs");
  says(what(with(8, 4, 2), [](Config& c) { c.train.global_batch_size = 6; }), "last group has 2 of 4");
  says(what(with(8, 4, 2), [](Config& c) { c.train.global_batch_size = 3; }), "last group has 3 of 4");
  says(what(with(8, 4, 2), [](Config& c) { c.parallel.microbatch_group_size_per_virtual_pipeline_stage = 3; }),
       "parallel.microbatch_group_size_per_virtual_pipeline_stage = 3 is less than");
  says(what(with(8, 4, 1), [](Config& c) { c.parallel.microbatch_group_size_per_virtual_pipeline_stage = 4; }),
       "parallel.microbatch_group_size_per_virtual_pipeline_stage = 4 needs");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "Et|t|tt|L|"; }), "5 chunks");
  says(what(with(4, 2, 2), [](Config& c) { c.parallel.pipeline_layout = "Ett|ttL"; }), "2 chunks where");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "Ett|tL"; }), "has 3 layers and model");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "Ettt|tL|||"; }), "5 chunks");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "|Etttt|L|"; }), "first chunk begins with E");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "Ett|tmtL"; }), "column 7: 't' comes too late");
  says(what(with(4, 2, 1), [](Config& c) { c.parallel.pipeline_layout = "Ett|ttmL"; }), "has 1 multi-token prediction");
  says(what(with(4, 2, 1),
            [](Config& c) {
              c.parallel.pipeline_layout = "Ett|ttL";
              c.parallel.account_for_loss_in_pipeline_split = true;
            }),
       "parallel.account_for_loss_in_pipeline_split");
  says(what(with(4, 2, 1), [](Config& c) { c.overlap.overlap_p2p_comm = c.overlap.batch_p2p_comm = true; }),
       "overlap.batch_p2p_comm with overlap.overlap_p2p_comm");
  says(what(with(4, 2, 2),
            [](Config& c) {
              c.overlap.overlap_p2p_comm = false;
              c.overlap.batch_p2p_comm = true;
            }),
       "overlap.batch_p2p_comm with parallel.virtual_pipeline_model_parallel_size = 2");
}

}  // namespace
}  // namespace mbb::trainer
