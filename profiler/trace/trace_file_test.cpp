// Tests of trace files: round trips, reading by rank and step, and every kind of damage.
#include "profiler/trace/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "profiler/trace/span_block.h"

namespace mbb::profiler {
namespace {

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("mbb_trace_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "t.mbtrace";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
  }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

// Two ranks, three tracks, steps 0-9, every field used.
Trace sample(size_t count) {
  Trace trace;
  trace.strings = {"", "layers.0.mlp.fc1.fwd", "µ-kernel", "all_reduce"};
  trace.tracks = {{0, StreamKind::kCompute, 0}, {0, StreamKind::kTp, 3}, {5, StreamKind::kHost, 2}};
  std::mt19937_64 random(3);
  int64_t now = -1'000'000;
  for (size_t i = 0; i < count; ++i) {
    Span span;
    now += static_cast<int64_t>(random() % 5000) - 500;
    span.start_ns = now;
    span.end_ns = now + static_cast<int64_t>(random() % 100000);
    span.track = static_cast<uint32_t>(random() % 3);
    span.name = static_cast<StringId>(random() % 4);
    span.op = static_cast<StringId>(random() % 4);
    span.step = static_cast<int32_t>(i * 10 / count) - 1;
    span.micro_batch = static_cast<int32_t>(random() % 9) - 1;
    span.kind = static_cast<SpanKind>(random() % kSpanKinds);
    span.phase = static_cast<Phase>(random() % kPhases);
    span.collective = random() % 2 == 0 ? 0 : random();
    span.correlation = static_cast<uint32_t>(random());
    trace.spans.push_back(span);
  }
  for (int32_t step = 0; step < 9; ++step) trace.steps.push_back({0, step, step * 100, step * 100 + 90});
  trace.dropped_spans = 17;
  return trace;
}

std::vector<Span> of_rank(const Trace& trace, int32_t rank) {
  std::vector<Span> spans;
  for (const Span& span : trace.spans)
    if (trace.rank_of(span) == rank) spans.push_back(span);
  return spans;
}

TEST_F(TraceFile, RoundTripKeepsEverything) {
  const Trace trace = sample(150'000);  // several blocks a rank
  ASSERT_TRUE(write_trace(path_, trace));
  const auto reader = TraceReader::open(path_);
  ASSERT_TRUE(reader) << reader.error().what;
  EXPECT_EQ(reader->span_count(), trace.spans.size());
  const auto back = reader->read_all();
  ASSERT_TRUE(back);
  EXPECT_EQ(back->strings, trace.strings);
  EXPECT_EQ(back->steps, trace.steps);
  EXPECT_EQ(back->dropped_spans, 17u);
  ASSERT_EQ(back->tracks.size(), 3u);
  EXPECT_EQ(back->tracks[1].stream, StreamKind::kTp);
  EXPECT_EQ(of_rank(*back, 0), of_rank(trace, 0));
  EXPECT_EQ(of_rank(*back, 5), of_rank(trace, 5));
  EXPECT_LT(std::filesystem::file_size(path_), trace.spans.size() * sizeof(Span) * 3 / 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no temporary stays";
}

TEST_F(TraceFile, ReadsByRankAndStep) {
  const Trace trace = sample(5000);
  ASSERT_TRUE(write_trace(path_, trace));
  const auto reader = TraceReader::open(path_);
  ASSERT_TRUE(reader);
  const auto part = reader->read_all({.first_rank = 5, .last_rank = 5, .first_step = 2, .last_step = 3});
  ASSERT_TRUE(part);
  auto wanted = of_rank(trace, 5);
  std::erase_if(wanted, [](const Span& span) { return span.step < 2 || span.step > 3; });
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(part->spans, wanted);
  EXPECT_TRUE(reader->read_all({.first_rank = 9})->spans.empty());
}

TEST_F(TraceFile, EmptyTraceIsATrace) {
  ASSERT_TRUE(write_trace(path_, {}));
  const auto back = read_trace(path_);
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->spans.empty());
  EXPECT_EQ(back->strings, std::vector<std::string>{""});
}

TEST_F(TraceFile, ExtremeValuesSurvive) {
  Trace trace;
  trace.tracks = {{-3, StreamKind::kOther, 0}};
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  trace.spans = {{.start_ns = -kFar, .end_ns = -kFar},
                 {.start_ns = kFar - 1, .end_ns = kFar, .collective = ~0ULL},
                 {.start_ns = 0, .end_ns = 0, .step = std::numeric_limits<int32_t>::max()}};
  ASSERT_TRUE(write_trace(path_, trace));
  const auto back = read_trace(path_);
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(back->spans, trace.spans);
}

TEST_F(TraceFile, AnUnfinishedWriterLeavesNothing) {
  {
    auto writer = TraceWriter::create(path_);
    ASSERT_TRUE(writer);
    writer->add_track({0, StreamKind::kCompute, 0});
    writer->add({});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TraceFile, MissingAndUnwritablePathsAreErrors) {
  const auto missing = TraceReader::open(folder_ / "no");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  const auto unwritable = TraceWriter::create(folder_ / "no" / "t");
  ASSERT_FALSE(unwritable);
  EXPECT_EQ(unwritable.error().code, ErrorCode::kIo);
  EXPECT_FALSE(TraceReader::open(folder_));
  put("something else entirely, long enough to hold a head and a tail");
  EXPECT_EQ(TraceReader::open(path_).error().code, ErrorCode::kBadFile);
}

TEST_F(TraceFile, EveryTruncationIsAnError) {
  ASSERT_TRUE(write_trace(path_, sample(40)));
  const std::string whole = bytes();
  for (size_t size = 0; size < whole.size(); size += size < 64 || size + 64 > whole.size() ? 1 : 37) {
    put(whole.substr(0, size));
    ASSERT_FALSE(read_trace(path_)) << size << " of " << whole.size();
  }
}

TEST_F(TraceFile, FlippedBytesAreErrors) {
  ASSERT_TRUE(write_trace(path_, sample(40)));
  const std::string whole = bytes();
  for (size_t at = 0; at < whole.size(); at += at < 100 || at + 400 > whole.size() ? 1 : 5) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    put(flipped);
    ASSERT_FALSE(read_trace(path_)) << "byte " << at;
  }
}

// Damage that hashes cannot see (a hostile writer): the decoder itself must hold.
TEST(SpanBlock, DecoderSurvivesRandomBytes) {
  const std::string good = encode_spans(sample(200).spans);
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    std::vector<Span> out;
    if (!decode_spans(bytes, 200, out)) continue;
    for (const Span& span : out) {
      ASSERT_LE(span.start_ns, span.end_ns);
      ASSERT_LT(static_cast<int>(span.kind), kSpanKinds);
      ASSERT_LT(static_cast<int>(span.phase), kPhases);
    }
  }
  std::vector<Span> out;
  EXPECT_FALSE(decode_spans(good, 201, out));
  EXPECT_FALSE(decode_spans(good + "x", 200, out));
}

}  // namespace
}  // namespace mbb::profiler
