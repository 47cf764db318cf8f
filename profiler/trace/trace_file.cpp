// Writer and reader of trace files.
#include "profiler/trace/trace_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include <fmt/core.h>

#include "profiler/base/check.h"
#include "profiler/base/descriptor.h"
#include "profiler/trace/span_block.h"

namespace mbb::profiler {

namespace {

constexpr std::string_view kHead = "MBTRACE1";
constexpr std::string_view kTail = "MBTREND1";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 16;
constexpr size_t kTailBytes = 24;
constexpr size_t kBlockHeaderBytes = 24;
constexpr uint32_t kLimitSpanBytes = kSpansPerBlock * 96 + 1024;  // more than any span block can be
constexpr uint32_t kLimitTableBytes = 1U << 30U;
constexpr int kCompression = 1;  // capture must not wait for the disk's sake

enum class BlockKind : uint32_t { kSpans = 1, kMeta = 2, kIndex = 3 };

struct IndexEntry {
  uint64_t offset = 0;
  uint32_t count = 0;
  int32_t rank = 0;
  int32_t first_step = 0;
  int32_t last_step = 0;
};

uint64_t hash_of(std::string_view header, std::string_view body) {
  return XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(header.data(), header.size()));
}

Error bad(const std::filesystem::path& path, const std::string& why) {
  return {ErrorCode::kBadFile, fmt::format("trace {}: {}", path.string(), why),
          "the file was cut off or damaged; take it again from its bundle, or profile the run again"};
}

Error system_error(const std::filesystem::path& path, const char* doing) {
  return {ErrorCode::kIo, fmt::format("{} trace {}: {}", doing, path.string(), std::strerror(errno)), ""};
}

// "header, compressed body" of a block.
std::string block_bytes(BlockKind kind, std::string_view raw) {
  std::string body(ZSTD_compressBound(raw.size()), '\0');
  const size_t size = ZSTD_compress(body.data(), body.size(), raw.data(), raw.size(), kCompression);
  MB_CHECK(ZSTD_isError(size) == 0U, "zstd refused to compress into a buffer of its own bound");
  body.resize(size);
  ByteWriter header;
  header.u32(static_cast<uint32_t>(kind));
  header.u32(static_cast<uint32_t>(raw.size()));
  header.u32(static_cast<uint32_t>(body.size()));
  header.u32(0);
  const uint64_t hash = hash_of(header.bytes(), body);
  header.u64(hash);
  return header.take() + body;
}

}  // namespace

// Writer

struct TraceWriter::Impl {
  Impl(std::filesystem::path final_path, std::filesystem::path partial_path, int fd)
      : path(std::move(final_path)), partial(std::move(partial_path)), file(fd) {}

  std::filesystem::path path;
  std::filesystem::path partial;
  Descriptor file;
  uint64_t offset = 0;
  StringTable strings;
  std::vector<Track> tracks;
  std::vector<StepWindow> steps;
  std::map<int32_t, std::vector<Span>> pending;  // by rank
  std::vector<std::vector<Span>*> pending_of;    // by track
  std::vector<IndexEntry> index;
  uint64_t dropped = 0;
  bool finished = false;
  Status status;

  void put(std::string_view bytes) {
    if (!status) return;
    if (!write_all(file.get(), bytes)) status = tl::unexpected(system_error(path, "writing"));
    offset += bytes.size();
  }

  void flush(int32_t rank, std::vector<Span>& spans) {
    if (spans.empty()) return;
    const auto by_step = [](const Span& a, const Span& b) { return a.step < b.step; };
    const auto [low, high] = std::minmax_element(spans.begin(), spans.end(), by_step);
    index.push_back({offset, static_cast<uint32_t>(spans.size()), rank, low->step, high->step});
    put(block_bytes(BlockKind::kSpans, encode_spans(spans)));
    spans.clear();
  }

  std::string meta() const {
    ByteWriter out;
    out.u32(static_cast<uint32_t>(strings.strings().size()));
    for (const std::string& text : strings.strings()) out.text(text);
    out.u32(static_cast<uint32_t>(tracks.size()));
    for (const Track& track : tracks) {
      out.i32(track.rank);
      out.u8(static_cast<uint8_t>(track.stream));
      out.u32(track.name);
    }
    out.u32(static_cast<uint32_t>(steps.size()));
    for (const StepWindow& step : steps) {
      out.i32(step.rank);
      out.i32(step.step);
      out.i64(step.start_ns);
      out.i64(step.end_ns);
    }
    out.u64(dropped);
    return out.take();
  }
};

TraceWriter::TraceWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&&) noexcept = default;

TraceWriter::~TraceWriter() {
  if (impl_ == nullptr || impl_->finished) return;
  std::error_code ignored;
  std::filesystem::remove(impl_->partial, ignored);
}

Result<TraceWriter> TraceWriter::create(const std::filesystem::path& path) {
  const std::filesystem::path partial = path.string() + fmt::format(".partial-{}", ::getpid());
  const int fd = open_retry(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return tl::unexpected(system_error(path, "creating"));
  auto impl = std::make_unique<Impl>(path, partial, fd);
  ByteWriter head;
  head.raw(kHead);
  head.u32(kVersion);
  head.u32(0);
  impl->put(head.bytes());
  return TraceWriter(std::move(impl));
}

StringId TraceWriter::intern(std::string_view text) {
  return impl_->strings.intern(text);
}

uint32_t TraceWriter::add_track(const Track& track) {
  MB_CHECK(track.name < impl_->strings.strings().size(), "a track's name must come from intern()");
  impl_->tracks.push_back(track);
  impl_->pending_of.push_back(&impl_->pending[track.rank]);
  return static_cast<uint32_t>(impl_->tracks.size() - 1);
}

void TraceWriter::add_step(const StepWindow& step) {
  impl_->steps.push_back(step);
}
void TraceWriter::add_dropped(uint64_t spans) {
  impl_->dropped += spans;
}

void TraceWriter::add(const Span& span) {
  MB_CHECK(span.track < impl_->tracks.size(), "a span's track must come from add_track()");
  MB_CHECK(span.end_ns >= span.start_ns, "a span must not end before it starts");
  std::vector<Span>& pending = *impl_->pending_of[span.track];
  pending.push_back(span);
  if (pending.size() == kSpansPerBlock) impl_->flush(impl_->tracks[span.track].rank, pending);
}

Status TraceWriter::finish() {
  Impl& w = *impl_;
  MB_CHECK(!w.finished, "a trace is finished once");
  for (auto& [rank, spans] : w.pending) w.flush(rank, spans);
  const uint64_t meta_offset = w.offset;
  const std::string meta = w.meta();
  if (meta.size() > kLimitTableBytes)
    return fail(ErrorCode::kIo, fmt::format("trace {}: its strings exceed 1 GiB", w.path.string()));
  w.put(block_bytes(BlockKind::kMeta, meta));
  ByteWriter index;
  index.u64(meta_offset);
  index.u32(static_cast<uint32_t>(w.index.size()));
  for (const IndexEntry& entry : w.index) {
    index.u64(entry.offset);
    index.u32(entry.count);
    index.i32(entry.rank);
    index.i32(entry.first_step);
    index.i32(entry.last_step);
  }
  ByteWriter tail;
  tail.u64(w.offset);
  tail.u64(hash_of(kTail, tail.bytes()));
  tail.raw(kTail);
  w.put(block_bytes(BlockKind::kIndex, index.bytes()));
  w.put(tail.bytes());
  MB_TRY(w.status);
  if (::fsync(w.file.get()) != 0 || !w.file.close() || ::rename(w.partial.c_str(), w.path.c_str()) != 0)
    return tl::unexpected(system_error(w.path, "finishing"));
  w.finished = true;
  return {};
}

// Reader

struct TraceReader::Impl {
  Impl(std::filesystem::path of, int fd) : path(std::move(of)), file(fd) {}

  std::filesystem::path path;
  Descriptor file;
  uint64_t size = 0;
  Trace head;
  std::vector<IndexEntry> index;

  tl::unexpected<Error> damaged(const std::string& why) const { return tl::unexpected(bad(path, why)); }

  Result<std::string> block(uint64_t offset, BlockKind kind, uint32_t limit) const;
  Status read_tables();
  Status read_meta(std::string_view bytes);
  Status read_index(std::string_view bytes, uint64_t& meta_offset);
  bool is_valid(const Span& span, int32_t rank) const {
    return span.track < head.tracks.size() && head.tracks[span.track].rank == rank && span.name < head.strings.size() &&
           span.op < head.strings.size();
  }
};

Result<std::string> TraceReader::Impl::block(uint64_t offset, BlockKind kind, uint32_t limit) const {
  if (offset < kHeadBytes || offset > size || size - offset < kBlockHeaderBytes)
    return damaged(fmt::format("a block lies at {}, outside the file of {} bytes", offset, size));
  std::string header(kBlockHeaderBytes, '\0');
  if (!read_all_at(file.get(), offset, header.data(), header.size())) return damaged("it ends early");
  ByteReader in(header);
  const uint32_t found = in.u32();
  const uint32_t raw_bytes = in.u32();
  const uint32_t stored_bytes = in.u32();
  in.u32();
  const uint64_t hash = in.u64();
  if (found != static_cast<uint32_t>(kind) || raw_bytes > limit || stored_bytes > size - offset - kBlockHeaderBytes)
    return damaged(fmt::format("the block at {} has an impossible header", offset));
  std::string body(stored_bytes, '\0');
  if (!read_all_at(file.get(), offset + kBlockHeaderBytes, body.data(), body.size())) return damaged("it ends early");
  if (hash_of(std::string_view(header).substr(0, 16), body) != hash)
    return damaged(fmt::format("the block at {} does not match its hash", offset));
  // The stored size must be plausible for the claimed one before memory is taken for it.
  const unsigned long long claimed = ZSTD_getFrameContentSize(body.data(), body.size());
  if (claimed != raw_bytes) return damaged(fmt::format("the block at {} claims two sizes", offset));
  std::string raw(raw_bytes, '\0');
  const size_t got = ZSTD_decompress(raw.data(), raw.size(), body.data(), body.size());
  if (ZSTD_isError(got) != 0U || got != raw_bytes)
    return damaged(fmt::format("the block at {} does not decompress", offset));
  return raw;
}

Status TraceReader::Impl::read_index(std::string_view bytes, uint64_t& meta_offset) {
  ByteReader in(bytes);
  meta_offset = in.u64();
  const uint32_t count = in.u32();
  if (in.left() != size_t{count} * 24) return damaged("its index has the wrong size");
  for (uint32_t i = 0; i < count; ++i) {
    IndexEntry entry;
    entry.offset = in.u64();
    entry.count = in.u32();
    entry.rank = in.i32();
    entry.first_step = in.i32();
    entry.last_step = in.i32();
    if (entry.count == 0 || entry.count > kSpansPerBlock) return damaged("its index has a block of impossible size");
    index.push_back(entry);
  }
  return {};
}

Status TraceReader::Impl::read_meta(std::string_view bytes) {
  ByteReader in(bytes);
  head.strings.clear();
  for (uint32_t left = in.u32(); left > 0 && in.ok(); --left) head.strings.emplace_back(in.text());
  for (uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    Track track;
    track.rank = in.i32();
    const uint8_t stream = in.u8();
    track.name = in.u32();
    if (stream >= kStreamKinds || track.name >= head.strings.size()) return damaged("a track of it is impossible");
    track.stream = static_cast<StreamKind>(stream);
    head.tracks.push_back(track);
  }
  for (uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    StepWindow step;
    step.rank = in.i32();
    step.step = in.i32();
    step.start_ns = in.i64();
    step.end_ns = in.i64();
    if (step.end_ns < step.start_ns) return damaged("a step of it ends before it starts");
    head.steps.push_back(step);
  }
  head.dropped_spans = in.u64();
  if (!in.at_end() || head.strings.empty() || !head.strings.front().empty()) return damaged("its tables are damaged");
  return {};
}

Status TraceReader::Impl::read_tables() {
  const off_t end = ::lseek(file.get(), 0, SEEK_END);
  if (end < 0) return tl::unexpected(system_error(path, "reading"));
  size = static_cast<uint64_t>(end);
  std::string head_bytes(kHeadBytes, '\0');
  if (size < kHeadBytes + kTailBytes || !read_all_at(file.get(), 0, head_bytes.data(), kHeadBytes) ||
      !head_bytes.starts_with(kHead))
    return damaged("it is no mbbench trace");
  ByteReader head_in(std::string_view(head_bytes).substr(kHead.size()));
  const uint32_t version = head_in.u32();
  if (version != kVersion)
    return fail(ErrorCode::kBadFile,
                fmt::format("trace {}: version {}, this program reads {}", path.string(), version, kVersion),
                "use the mbbench that wrote it, or a newer one");
  if (head_in.u32() != 0) return damaged("its head is damaged");
  std::string tail(kTailBytes, '\0');
  if (!read_all_at(file.get(), size - kTailBytes, tail.data(), kTailBytes) || !tail.ends_with(kTail))
    return damaged("its end is missing");
  ByteReader tail_in(tail);
  const uint64_t index_offset = tail_in.u64();
  if (tail_in.u64() != hash_of(kTail, std::string_view(tail).substr(0, 8))) return damaged("its end is damaged");
  uint64_t meta_offset = 0;
  MB_ASSIGN(const std::string index_bytes, block(index_offset, BlockKind::kIndex, kLimitTableBytes));
  MB_TRY(read_index(index_bytes, meta_offset));
  MB_ASSIGN(const std::string meta_bytes, block(meta_offset, BlockKind::kMeta, kLimitTableBytes));
  return read_meta(meta_bytes);
}

TraceReader::TraceReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;
TraceReader::~TraceReader() = default;

Result<TraceReader> TraceReader::open(const std::filesystem::path& path) {
  const int fd = open_retry(path.c_str(), O_RDONLY);
  if (fd < 0) {
    Error error = system_error(path, "opening");
    if (errno == ENOENT) error.code = ErrorCode::kNotFound;
    return tl::unexpected(error);
  }
  auto impl = std::make_unique<Impl>(path, fd);
  MB_TRY(impl->read_tables());
  return TraceReader(std::move(impl));
}

const Trace& TraceReader::without_spans() const {
  return impl_->head;
}

uint64_t TraceReader::span_count() const {
  uint64_t count = 0;
  for (const IndexEntry& entry : impl_->index) count += entry.count;
  return count;
}

Status TraceReader::read(const TraceQuery& query, const std::function<void(std::span<const Span>)>& take) const {
  std::vector<Span> spans;
  for (const IndexEntry& entry : impl_->index) {
    if (entry.rank < query.first_rank || entry.rank > query.last_rank) continue;
    if (entry.last_step < query.first_step || entry.first_step > query.last_step) continue;
    MB_ASSIGN(const std::string raw, impl_->block(entry.offset, BlockKind::kSpans, kLimitSpanBytes));
    spans.clear();
    if (!decode_spans(raw, entry.count, spans))
      return impl_->damaged(fmt::format("the spans at {} are damaged", entry.offset));
    for (const Span& span : spans)
      if (!impl_->is_valid(span, entry.rank) || span.step < entry.first_step || span.step > entry.last_step)
        return impl_->damaged(fmt::format("a span at {} names what is not there", entry.offset));
    if (entry.first_step < query.first_step || entry.last_step > query.last_step)
      std::erase_if(spans, [&](const Span& s) { return s.step < query.first_step || s.step > query.last_step; });
    if (!spans.empty()) take(spans);
  }
  return {};
}

Result<Trace> TraceReader::read_all(const TraceQuery& query) const {
  Trace trace = impl_->head;
  MB_TRY(read(query,
              [&](std::span<const Span> spans) { trace.spans.insert(trace.spans.end(), spans.begin(), spans.end()); }));
  return trace;
}

Status write_trace(const std::filesystem::path& path, const Trace& trace) {
  MB_ASSIGN(TraceWriter writer, TraceWriter::create(path));
  std::vector<StringId> ids;
  for (const std::string& text : trace.strings) ids.push_back(writer.intern(text));
  for (Track track : trace.tracks) {
    track.name = ids[track.name];
    writer.add_track(track);
  }
  for (const StepWindow& step : trace.steps) writer.add_step(step);
  for (Span span : trace.spans) {
    span.name = ids[span.name];
    span.op = ids[span.op];
    writer.add(span);
  }
  writer.add_dropped(trace.dropped_spans);
  return writer.finish();
}

Result<Trace> read_trace(const std::filesystem::path& path) {
  MB_ASSIGN(const TraceReader reader, TraceReader::open(path));
  return reader.read_all();
}

}  // namespace mbb::profiler
