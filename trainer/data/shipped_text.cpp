// The shipped text, embedded so that the program needs no file beside it.
#include <fmt/format.h>
#include <algorithm>

#include "profiler/base/hash.h"
#include "trainer/data/named_bytes.h"

// The assembler copies the file into read-only data; CMake gives its path and rebuilds this object when it changes.
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".global mbb_shipped_text\n"
    ".hidden mbb_shipped_text\n"
    "mbb_shipped_text:\n"
    ".incbin \"" MBB_SHIPPED_TEXT
    "\"\n"
    ".global mbb_shipped_text_end\n"
    ".hidden mbb_shipped_text_end\n"
    "mbb_shipped_text_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const char mbb_shipped_text[];
extern const char mbb_shipped_text_end[];
}

namespace mbb::trainer {

namespace {
// XXH3 (128 bit) of trainer/data/text/constitution.txt.
constexpr std::string_view kShippedTextHash = "5a645372ef9522f0370a29be0d82a25b";
}  // namespace

Result<TokenSourcePtr> open_shipped_text(std::int64_t vocab_size) {
  const std::string_view text(mbb_shipped_text, static_cast<std::size_t>(mbb_shipped_text_end - mbb_shipped_text));
  const std::string hash = hash_hex(text);
  if (hash != kShippedTextHash)
    return fail(ErrorCode::kMismatch,
                fmt::format("the shipped text has hash {}, not {}: this build was made from another text", hash,
                            kShippedTextHash),
                "restore trainer/data/text/constitution.txt and build again");
  return read_raw_bytes({"shipped text", text, nullptr}, hash, vocab_size);
}

}  // namespace mbb::trainer
