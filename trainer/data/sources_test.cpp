// Every token source, on good files and on bad ones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "profiler/base/hash.h"
#include "trainer/data/named_bytes.h"
#include "trainer/data/rng.h"

namespace mbb::trainer {
namespace {

class Sources : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("mbb_sources_" + std::to_string(::getpid()) + "_" +
                                                       ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

  std::filesystem::path folder_;
};

std::vector<std::int32_t> all_tokens(const TokenSource& source) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.num_tokens()));
  EXPECT_TRUE(source.read(0, tokens).has_value());
  return tokens;
}

void expect_error(const Result<TokenSourcePtr>& result, ErrorCode code, const std::string& part) {
  ASSERT_FALSE(result.has_value()) << "expected: " << part;
  EXPECT_EQ(result.error().code, code) << result.error().what;
  EXPECT_NE(result.error().what.find(part), std::string::npos) << result.error().what << "\nexpected: " << part;
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An index pair written from the format's description. Documents are given as lists of sequences.
struct IndexPair {
  std::string idx, bin;
};
template <typename T>
IndexPair make_index(int type_code, const std::vector<std::vector<std::vector<int>>>& documents) {
  IndexPair pair;
  std::string lengths, offsets, starts;
  std::int64_t sequences = 0;
  for (const auto& document : documents) {
    append(starts, sequences);
    for (const auto& sequence : document) {
      append(lengths, static_cast<std::int32_t>(sequence.size()));
      append(offsets, static_cast<std::int64_t>(pair.bin.size()));
      for (const int token : sequence) append(pair.bin, static_cast<T>(token));
      ++sequences;
    }
  }
  append(starts, sequences);
  pair.idx.append("MMIDIDX\0\0", 9);
  append(pair.idx, std::uint64_t{1});
  append(pair.idx, static_cast<std::uint8_t>(type_code));
  append(pair.idx, static_cast<std::uint64_t>(sequences));
  append(pair.idx, static_cast<std::uint64_t>(documents.size() + 1));
  pair.idx += lengths + offsets + starts;
  return pair;
}

const std::vector<std::vector<std::vector<int>>> kDocuments = {{{1, 2, 3}, {4}}, {}, {{5, 6}, {}, {7}}};
const std::vector<std::int32_t> kTokens = {1, 2, 3, 4, 5, 6, 7};

TEST_F(Sources, ShippedTextIsTheFileInTheTree) {
  const TokenSourcePtr source = open_shipped_text(256).value();
  EXPECT_EQ(source->identity(),
            hash_file_hex(std::string(MBB_SOURCE_DIR) + "/trainer/data/text/constitution.txt").value());
  EXPECT_GE(source->num_tokens(), 45000);
  const std::vector<std::int32_t> tokens = all_tokens(*source);
  EXPECT_EQ(std::string(tokens.begin(), tokens.begin() + 16), "The Constitution");
  // Worked out apart from this code.
  EXPECT_NEAR(unigram_entropy(*source).value(), 3.1242181975, 1e-9);
  expect_error(open_shipped_text(100), ErrorCode::kBadFile, "is no token of a vocabulary of 100");
}

TEST_F(Sources, RawBytes) {
  const std::string path = write("data.txt", std::string_view("a\0\xff", 3));
  const TokenSourcePtr source = open_tokens({DataKind::kAuto, path}, 256).value();
  EXPECT_EQ(all_tokens(*source), (std::vector<std::int32_t>{97, 0, 255}));
  EXPECT_EQ(source->num_documents(), 1);
  expect_error(open_raw_bytes(path, 128), ErrorCode::kBadFile, "data.txt, offset 2: byte 255");
  expect_error(open_raw_bytes(write("empty.txt", ""), 256), ErrorCode::kBadFile, "empty.txt is empty");
  expect_error(open_raw_bytes(path + ".not", 256), ErrorCode::kNotFound, "data.txt.not");
  expect_error(open_raw_bytes(folder_.string(), 256), ErrorCode::kBadFile, "no regular file");
  expect_error(open_raw_bytes("/dev/zero", 256), ErrorCode::kBadFile, "no regular file");
}

TEST_F(Sources, JsonLines) {
  const std::string path = write("data.jsonl",
                                 "[1, 2]\n\n  {\"id\": [9, [8]], \"meta\": {\"tokens\": [4]}, \"tokens\": [3],"
                                 " \"x\": null}\r\n{\"input_ids\":[]}\n[4]");
  const TokenSourcePtr source = open_tokens({DataKind::kAuto, path}, 10).value();
  EXPECT_EQ(all_tokens(*source), (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(source->num_documents(), 4);
  EXPECT_EQ(source->document(1).offset, 2);
  EXPECT_EQ(source->document(2).length, 0);
  EXPECT_EQ(source->document(3).offset, 3);
}

TEST_F(Sources, BadJsonLinesNameFileLineAndOffset) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1]\n[1,2", "bad.jsonl, line 2 (offset 4): is no JSON"},
      {"[1]\n\n[10]", "line 3 (offset 5): token 0 is 10, not within the vocabulary of 10"},
      {"[1, -1]", "line 1 (offset 0): token 1 is -1"},
      {"[1, 2.0]", "token 1 is 2.0, not a whole number"},
      {"[1, \"2\"]", "token 1 is a text"},
      {"[1, [2]]", "token 1 is a list"},
      {"[{}]", "token 0 is an object"},
      {"[true]", "token 0 is true or false"},
      {"[null]", "token 0 is null"},
      {"[99999999999999999999]", "token 0 is 99999999999999999999"},
      {"{\"text\": \"a\"}", "has no token list"},
      {"7", "has no token list"},
      {"{\"tokens\": 3}", "has a single value"},
      {"{\"tokens\": {\"a\": [1]}}", "has an object"},
      {"{\"tokens\": [1], \"input_ids\": [1]}", "two token lists"},
      {"[1] [2]", "is no JSON"},
      {"[1]\n\xff\xfe", "line 2 (offset 4): is no JSON"},
      {"", "bad.jsonl, offset 0: the file ends after 0 lines without a token"},
      {"\n[]\n", "bad.jsonl, offset 4: the file ends after 2 lines without a token"},
  };
  for (const auto& [text, part] : cases)
    expect_error(open_jsonl(write("bad.jsonl", text), 10), ErrorCode::kBadFile, part);
}

TEST_F(Sources, DeepNestingIsNoStackOverflow) {
  const std::string deep(1 << 20, '[');
  expect_error(open_jsonl(write("deep.jsonl", "{\"a\":" + deep), 10), ErrorCode::kBadFile, "is no JSON");
}

template <typename T>
void check_type(const Sources&, const std::string& prefix, int code, const std::string& name) {
  const IndexPair pair = make_index<T>(code, kDocuments);
  std::ofstream(prefix + ".idx", std::ios::binary) << pair.idx;
  std::ofstream(prefix + ".bin", std::ios::binary) << pair.bin;
  for (const std::string suffix : {"", ".bin", ".idx"}) {
    const auto opened = open_tokens({DataKind::kAuto, prefix + suffix}, 8);
    ASSERT_TRUE(opened.has_value()) << opened.error().what;
    EXPECT_EQ(all_tokens(**opened), kTokens);
    EXPECT_EQ((*opened)->num_documents(), 3);
    EXPECT_EQ((*opened)->document(0).length, 4);
    EXPECT_EQ((*opened)->document(1).length, 0);
    EXPECT_EQ((*opened)->document(2).offset, 4);
    EXPECT_EQ((*opened)->document(2).length, 3);
    EXPECT_NE((*opened)->describe().find(name), std::string::npos);
  }
}

TEST_F(Sources, MegatronIndexOfEveryTokenType) {
  const std::string prefix = (folder_ / "corpus").string();
  check_type<std::uint8_t>(*this, prefix, 1, "uint8");
  check_type<std::int8_t>(*this, prefix, 2, "int8");
  check_type<std::int16_t>(*this, prefix, 3, "int16");
  check_type<std::int32_t>(*this, prefix, 4, "int32");
  check_type<std::int64_t>(*this, prefix, 5, "int64");
  check_type<std::uint16_t>(*this, prefix, 8, "uint16");
}

TEST_F(Sources, MegatronTokensOutsideTheVocabularyNameTheirOffset) {
  const IndexPair pair = make_index<std::int32_t>(4, {{{1, 2, 300}}});
  write("c.bin", pair.bin);
  expect_error(open_megatron(write("c.idx", pair.idx), 256), ErrorCode::kBadFile,
               "c.bin, offset 8: token 300 is not within the vocabulary of 256");
}

TEST_F(Sources, MegatronTokensOfALargeFileAreSampledWhenOpenedAndAllCheckedWhenRead) {
  std::vector<int> tokens((std::size_t{16} << 20) + 5000, 7);
  tokens[100'000] = 250;  // between two pieces
  const IndexPair pair = make_index<std::uint8_t>(1, {{tokens}});
  write("large.bin", pair.bin);
  const TokenSourcePtr source = open_megatron(write("large.idx", pair.idx), 250).value();
  std::vector<std::int32_t> read(10);
  EXPECT_TRUE(source->read(99'990, read).has_value());
  const Status status = source->read(99'995, read);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("large.bin, offset 100000: token 250 is not within the vocabulary of 250"),
            std::string::npos)
      << status.error().what;
  std::string wrong = pair.bin;
  wrong.front() = '\xff';
  write("large.bin", wrong);
  expect_error(open_megatron((folder_ / "large.idx").string(), 250), ErrorCode::kBadFile, "token 255");
}

// One lie at a time: `at` bytes into the index, `value` over what was there.
struct Lie {
  std::size_t at;
  std::string bytes;
  const char* says;
};

TEST_F(Sources, LyingMegatronIndexNamesFileAndOffset) {
  const IndexPair good = make_index<std::int32_t>(4, kDocuments);
  write("c.bin", good.bin);
  auto word = [](auto value) {
    std::string bytes;
    append(bytes, value);
    return bytes;
  };
  // Tables: 5 lengths at 34, 5 offsets at 54, 4 document starts at 94.
  const Lie lies[] = {
      {0, "X", "offset 0: this is no Megatron index"},
      {9, word(std::uint64_t{2}), "offset 9: index version 2"},
      {17, word(std::uint8_t{6}), "offset 17: token type 6"},
      {17, word(std::uint8_t{0}), "offset 17: token type 0"},
      {17, word(std::uint8_t{5}), "offset 62: sequence 1 starts at byte 12"},
      {18, word(std::uint64_t{4}), "bytes follow the tables"},
      {18, word(std::uint64_t{6}), "the file ends early"},
      {18, word(~std::uint64_t{0}), "offset 18:"},
      {26, word(~std::uint64_t{0}), "offset 26:"},
      {26, word(std::uint64_t{5}), "the file ends early"},
      {34, word(std::int32_t{-3}), "offset 34: sequence 0 has length -3"},
      {34, word(std::int32_t{4}), "offset 62: sequence 1 starts at byte 12 of the data, but those before it end at 16"},
      {54, word(std::int64_t{4}), "offset 54: sequence 0 starts at byte 4"},
      {50, word(std::int32_t{2000000000}), "offset 50: sequence 4 ends at byte"},
      {50, word(std::int32_t{0}), "covers 24 of the 28 bytes"},
      {94, word(std::int64_t{1}), "offset 94: document 0 starts at sequence 1"},
      {102, word(std::int64_t{-1}), "offset 102: document 1 starts at sequence -1"},
      {102, word(std::int64_t{6}), "offset 102: document 1 starts at sequence 6"},
      {110, word(std::int64_t{1}), "offset 110: document 2 starts at sequence 1, not within 2..5"},
      {118, word(std::int64_t{4}), "offset 118: the documents end at sequence 4 of 5"},
  };
  for (const Lie& lie : lies) {
    std::string idx = good.idx;
    idx.replace(lie.at, lie.bytes.size(), lie.bytes);
    const auto result = open_megatron(write("c.idx", idx), 256);
    expect_error(result, ErrorCode::kBadFile, lie.says);
    EXPECT_NE(result.error().what.find("c.idx"), std::string::npos);
  }
}

TEST_F(Sources, EveryTruncationOfAMegatronPairIsRefused) {
  const IndexPair good = make_index<std::uint16_t>(8, kDocuments);
  auto opens = [](const std::string& idx, const std::string& bin) {
    return read_megatron({"c.idx", idx, nullptr}, {"c.bin", bin, nullptr}, 256).has_value();
  };
  EXPECT_TRUE(opens(good.idx, good.bin));
  for (std::size_t size = 0; size < good.idx.size(); ++size) EXPECT_FALSE(opens(good.idx.substr(0, size), good.bin));
  for (std::size_t size = 0; size < good.bin.size(); ++size) EXPECT_FALSE(opens(good.idx, good.bin.substr(0, size)));
  write("c.bin", good.bin);
  expect_error(open_megatron(write("c.idx", good.idx + std::string(5, '\0')), 256), ErrorCode::kBadFile, "multimodal");
  expect_error(open_megatron(write("c.idx", good.idx + "x"), 256), ErrorCode::kBadFile, "1 bytes follow");
  write("c.idx", good.idx);
  write("c.bin", good.bin + "x");
  expect_error(open_megatron((folder_ / "c").string(), 256), ErrorCode::kBadFile, "covers 14 of the 15 bytes");
}

TEST_F(Sources, EmptyAndMissingMegatronPairs) {
  const IndexPair empty = make_index<std::int32_t>(4, {});
  write("e.bin", "");
  expect_error(open_megatron(write("e.idx", empty.idx), 256), ErrorCode::kBadFile, "e.bin has no tokens");
  expect_error(open_megatron((folder_ / "none").string(), 256), ErrorCode::kNotFound, "none.idx");
  write("half.idx", empty.idx);
  expect_error(open_megatron((folder_ / "half").string(), 256), ErrorCode::kNotFound, "half.bin");
}

// Whatever opens must also be whole: every document inside the stream, every token readable or refused by name.
void read_everything(const Result<TokenSourcePtr>& opened) {
  if (!opened.has_value()) {
    EXPECT_FALSE(opened.error().what.empty());
    return;
  }
  const TokenSource& source = **opened;
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < source.num_documents(); ++i) {
    ASSERT_EQ(source.document(i).offset, end);
    ASSERT_GE(source.document(i).length, 0);
    end += source.document(i).length;
  }
  ASSERT_EQ(end, source.num_tokens());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(end));
  if (!source.read(0, tokens).has_value()) return;
  for (const std::int32_t token : tokens) ASSERT_TRUE(token >= 0 && token < 256);
}

// Random bytes put over, cut from and inserted into good files.
std::string mutated(std::string bytes, const RandomStream& stream, std::uint64_t round) {
  const std::uint64_t edits = 1 + stream.below(4, round, 0);
  for (std::uint64_t e = 0; e < edits && !bytes.empty(); ++e) {
    const auto at = static_cast<std::size_t>(stream.below(bytes.size(), round, 8 * e + 1));
    const auto value = static_cast<char>(stream.bits(round, 64 + e));
    switch (stream.below(4, round, 8 * e + 2)) {
      case 0: bytes[at] = value; break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << (value & 7))); break;
      case 2: bytes.resize(at); break;
      default: bytes.insert(at, 1, value);
    }
  }
  return bytes;
}

TEST_F(Sources, FuzzedMegatronIndexNeverReadsOutside) {
  const IndexPair good = make_index<std::uint8_t>(1, kDocuments);
  const RandomStream stream(1, "fuzz.idx", 0);
  for (std::uint64_t round = 0; round < 20000; ++round) {
    const std::string idx = mutated(good.idx, stream, round);
    read_everything(read_megatron({"c.idx", idx, nullptr}, {"c.bin", good.bin, nullptr}, 256));
  }
}

TEST_F(Sources, FuzzedJsonLinesNeverCrash) {
  const std::string good = "[1, 2, 3]\n{\"tokens\": [4, 5], \"meta\": {\"a\": [1.5, \"x\", null]}}\n[6]\n";
  const RandomStream stream(1, "fuzz.jsonl", 0);
  int opened = 0;
  for (std::uint64_t round = 0; round < 20000; ++round) {
    const std::string text = mutated(good, stream, round);
    const auto result = read_jsonl({"c.jsonl", text, nullptr}, 256);
    opened += result.has_value() ? 1 : 0;
    read_everything(result);
  }
  EXPECT_GT(opened, 500);  // the mutations are small enough that some files stay good
}

TEST_F(Sources, SyntheticTokensDependOnTheirPlaceOnly) {
  const TokenSourcePtr source = make_synthetic(5, 1000, 10000, 300).value();
  const std::vector<std::int32_t> all = all_tokens(*source);
  std::vector<std::int32_t> part(100);
  ASSERT_TRUE(source->read(777, part).has_value());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 777));
  EXPECT_NE(all, all_tokens(*make_synthetic(6, 1000, 10000, 300).value()));
  EXPECT_EQ(source->num_documents(), 34);
  EXPECT_EQ(source->document(33).length, 100);
  for (const std::int32_t token : all) ASSERT_TRUE(token >= 0 && token < 1000);
  const TokenSourcePtr large = make_synthetic(5, 16).value();
  EXPECT_NEAR(unigram_entropy(*large, 1 << 16).value(), std::log(16.0), 1e-3);
  EXPECT_TRUE(large->read((std::int64_t{1} << 40) - 100, part).has_value());
  EXPECT_FALSE(make_synthetic(1, 0).has_value());
  EXPECT_FALSE(make_synthetic(1, 10, 0).has_value());
}

TEST_F(Sources, UnigramEntropyOfKnownFrequencies) {
  const TokenSourcePtr source = make_in_memory("four", {{0, 0}, {1, 3}}, 4).value();
  EXPECT_NEAR(unigram_entropy(*source).value(), 0.5 * std::log(2.0) + 0.5 * std::log(4.0), 1e-12);
  EXPECT_EQ(unigram_entropy(*make_in_memory("one", {{2, 2, 2}}, 4).value()).value(), 0.0);
  EXPECT_FALSE(unigram_entropy(*source, 0).has_value());
  expect_error(make_in_memory("bad", {{1}, {4}}, 4), ErrorCode::kBadArgument, "token 1 is 4");
  expect_error(make_in_memory("empty", {{}}, 4), ErrorCode::kBadArgument, "has no tokens");
}

TEST_F(Sources, WhatIsNamedMustFitItsKind) {
  expect_error(open_tokens({DataKind::kJsonl, ""}, 256), ErrorCode::kBadArgument, "needs a path");
  expect_error(open_tokens({DataKind::kSynthetic, "a.txt"}, 256), ErrorCode::kBadArgument, "reads no file");
  expect_error(open_tokens({DataKind::kText, "/nonexistent/a.txt"}, 256), ErrorCode::kNotFound, "a.txt");
  EXPECT_EQ(all_tokens(*open_tokens({DataKind::kText, write("b.txt", "hi")}, 256).value()),
            (std::vector<std::int32_t>{'h', 'i'}));
  expect_error(open_tokens({DataKind::kAuto, "/nonexistent/x"}, 256), ErrorCode::kNotFound, "/nonexistent/x");
  EXPECT_TRUE(open_tokens({}, 256).has_value());
  EXPECT_TRUE(open_tokens({DataKind::kSynthetic, ""}, 256).has_value());
}

}  // namespace
}  // namespace mbb::trainer
