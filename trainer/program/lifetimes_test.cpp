// Lifetimes from op lists and the order of segments, against the unrolled step.
#include "trainer/program/lifetimes.h"

#include <map>
#include <nlohmann/json.hpp>

#include "trainer/program/explain.h"
#include "trainer/program/sample_programs_test.h"
#include "trainer/program/walk.h"

namespace mbb::trainer {
namespace {

TEST(Lifetimes, AreTheFirstWriteAndLastReadOfTheWalk) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    Config config = random_mapping(random);
    if (i % 2 == 0) config.memory.recompute_granularity = RecomputeGranularity::kFull;
    const Built built = build(config);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mapping_of(built));
    for (const Program& program : built.programs.programs) {
      std::map<TensorId, const Op*> first_writer, last_reader;
      walk(program, [&](int, const Call&, int, const Op& op) {
        for (const TensorId id : op.in) last_reader[id] = last_reader[program.storage(id)] = &op;
        for (const TensorId id : op.out) {
          first_writer.try_emplace(id, &op);
          first_writer.try_emplace(program.storage(id), &op);
        }
      });
      const std::vector<Lifetime> lives = lifetimes(program);
      for (size_t t = 0; t < program.tensors.size(); ++t) {
        const auto id = static_cast<TensorId>(t);
        const auto path = [](const Op* op) { return op ? op->path : "nobody"; };
        EXPECT_EQ(path(lives[t].first_writer), path(first_writer[id])) << program.tensors[t].path;
        EXPECT_EQ(path(lives[t].last_reader), path(last_reader[id])) << program.tensors[t].path;
      }
    }
  }
}

TEST(Lifetimes, TextListsBuffersByFirstUseAndRefusesAPatternWithoutMatch) {
  const Built b = build(mapped(1, 1, 1));
  const auto text = lifetimes_text(b.programs.programs[0], "layers.1.*");
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("layers.1.mlp.fc1.out"), std::string::npos);
  EXPECT_EQ(text->find("layers.0.mlp.fc1.out"), std::string::npos);
  EXPECT_LT(text->find("layers.1.attn.norm.out.0"), text->find("layers.1.mlp.act.out"));
  const auto none = lifetimes_text(b.programs.programs[0], "layers.99.*");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().what, "no buffer has a path like 'layers.99.*'");
  const auto whole = lifetimes_text(b.programs.programs[0]);
  ASSERT_TRUE(whole.has_value());
  EXPECT_NE(whole->find("(the host)"), std::string::npos);
}

TEST(Lifetimes, JsonNamesWriterAndReader) {
  const Built b = build(mapped(1, 1, 1));
  const auto json = nlohmann::json::parse(explain_json(b.layout, b.programs), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  bool found = false;
  for (const auto& tensor : json["rank_classes"][0]["tensors"]) {
    if (tensor["path"] != "layers.1.mlp.act.out") continue;
    found = true;
    EXPECT_EQ(tensor["first_writer"], "layers.1.mlp.act.fwd");
    EXPECT_EQ(tensor["last_reader"], "layers.1.mlp.fc2.wgrad");
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace mbb::trainer
