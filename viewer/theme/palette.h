// The colours of the viewer: one meaning each, in a dark and a light form, told apart by colour-blind eyes.
//
// A colour never speaks alone: what it says is also a word, a sign or a shape beside it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace mbb::viewer {

enum class Ink : std::uint8_t {
  // Surfaces and text.
  kBackground,
  kSurface,
  kRaised,
  kBorder,
  kGrid,
  kText,
  kMuted,
  kFaint,
  kAccent,
  kSelected,
  // The two runs of a comparison.
  kRunA,
  kRunB,
  // Judgements.
  kFaster,
  kSlower,
  kWarning,
  // What time and memory are spent on.
  kGemm,
  kAttention,
  kMemoryBound,
  kCommunication,
  kCopy,
  kOptimizer,
  kHost,
  kActivation,
  kCount
};

// How a colour is used; colours of one group stand side by side and must be told apart.
enum class InkGroup : std::uint8_t { kChrome, kRuns, kVerdicts, kWork };

struct InkRow {
  Ink ink;
  InkGroup group;
  std::string_view name;
  std::string_view meaning;
  std::uint32_t dark;   // 0xRRGGBB
  std::uint32_t light;  // 0xRRGGBB
};

enum class Theme : std::uint8_t { kDark, kLight };

// Every colour, in the order of Ink.
std::span<const InkRow> inks();

Theme theme();
void set_theme(Theme chosen);

// Packed as ImGui's ImU32 (ABGR), for the theme in force. `alpha` 0..1.
std::uint32_t color(Ink ink, float alpha = 1.0F);

// Same, from a 0xRRGGBB value.
std::uint32_t pack(std::uint32_t rgb, float alpha = 1.0F);

// A step between two inks, t 0..1, mixed in linear light.
std::uint32_t mix(Ink from, Ink to, float t, float alpha = 1.0F);

// An ordered ramp (micro-batch 0..n-1, matrix cells): dark to bright, one hue path, monotone in lightness.
std::uint32_t ramp(float t, float alpha = 1.0F);

// Black or white, whichever reads better on `background` (packed).
std::uint32_t text_on(std::uint32_t background);

}  // namespace mbb::viewer
