// Text that is longer than its place: cut with an ellipsis, so that it never looks whole.
#pragma once

#include <imgui.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace mbb::viewer {

// kMiddle keeps both ends: of dotted paths and ids the end tells as much as the beginning.
enum class Cut : std::uint8_t { kEnd, kMiddle };

// `text` (clean UTF-8) where it fits into `width` pixels of `font` at `size`, else the longest part that does with its
// ellipsis; empty where not even that fits.
std::string fit_text(const ImFont& font, float size, std::string_view text, float width, Cut cut = Cut::kEnd);

}  // namespace mbb::viewer
