// Bytes under a name, mapped from a file or held in memory, and the readers that make token sources of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "profiler/base/error.h"
#include "trainer/data/token_source.h"

namespace mbb::trainer {

struct NamedBytes {
  std::string name;  // what errors call it: the path of a file
  std::string_view bytes;
  std::shared_ptr<const void> holder;  // keeps the bytes; null: they live as long as the program
};

// Maps the file read-only. A missing file is kNotFound; a folder, a device or a pipe is refused. An empty file is an
// empty view.
Result<NamedBytes> map_file(const std::string& path);

// Bytes are tokens, all of them one document. Refuses an empty view, and a vocabulary that lacks one of the bytes.
// `identity` "": the bytes' hash, taken when it is asked for.
Result<TokenSourcePtr> read_raw_bytes(NamedBytes bytes, std::string identity, std::int64_t vocab_size);
// One document a line.
Result<TokenSourcePtr> read_jsonl(const NamedBytes& bytes, std::int64_t vocab_size);
// The two files of a Megatron index.
Result<TokenSourcePtr> read_megatron(NamedBytes index, NamedBytes data, std::int64_t vocab_size);

}  // namespace mbb::trainer
