// The table of colours and the arithmetic on them.
#include "viewer/theme/palette.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mbb::viewer {
namespace {

constexpr std::array kInks = {
    InkRow{Ink::kBackground, InkGroup::kChrome, "background", "behind everything", 0x12151A, 0xF3F4F6},
    InkRow{Ink::kSurface, InkGroup::kChrome, "surface", "a panel", 0x191D24, 0xFFFFFF},
    InkRow{Ink::kRaised, InkGroup::kChrome, "raised", "headers, fields, hovered rows", 0x232933, 0xE8EBEF},
    InkRow{Ink::kBorder, InkGroup::kChrome, "border", "edges", 0x2E3642, 0xCBD1D9},
    InkRow{Ink::kGrid, InkGroup::kChrome, "grid", "plot lines", 0x262C36, 0xE3E6EB},
    InkRow{Ink::kText, InkGroup::kChrome, "text", "text", 0xDDE2E9, 0x1B2027},
    InkRow{Ink::kMuted, InkGroup::kChrome, "muted", "labels, units", 0x98A2B0, 0x56606D},
    InkRow{Ink::kFaint, InkGroup::kChrome, "faint", "units, marks at the edge, what repeats", 0x6E7A89, 0x75808D},
    InkRow{Ink::kAccent, InkGroup::kChrome, "accent", "what can be pressed, where the focus is", 0x9DB2FF, 0x3D55C4},
    InkRow{Ink::kSelected, InkGroup::kChrome, "selected", "the selected row", 0x2B3557, 0xD5DCF9},
    InkRow{Ink::kRunA, InkGroup::kRuns, "run A", "the run looked at", 0x5AB4F0, 0x0A6EB4},
    InkRow{Ink::kRunB, InkGroup::kRuns, "run B", "the run compared with", 0xF0B429, 0x9D6100},
    InkRow{Ink::kFaster, InkGroup::kVerdicts, "faster", "better than before", 0x2CC295, 0x007A5A},
    InkRow{Ink::kSlower, InkGroup::kVerdicts, "slower", "worse than before, broken", 0xFF6B5E, 0xCD2E25},
    InkRow{Ink::kWarning, InkGroup::kVerdicts, "warning", "inconclusive, unstable, incomplete", 0xE9D66B, 0x695800},
    InkRow{Ink::kGemm, InkGroup::kWork, "GEMM", "matrix products; weights in memory", 0x567ADB, 0x3C54B1},
    InkRow{Ink::kAttention, InkGroup::kWork, "attention", "attention core", 0xC092F9, 0x7143D1},
    InkRow{Ink::kMemoryBound, InkGroup::kWork, "memory-bound", "norms, activation functions, quantize, loss", 0x6FD3E3,
           0x1B90A5},
    InkRow{Ink::kCommunication, InkGroup::kWork, "communication", "collectives and sends; their buffers", 0xF08A4B,
           0xC4570F},
    InkRow{Ink::kCopy, InkGroup::kWork, "copy", "copies and offload; main gradients in memory", 0xD8D6A0, 0x8D8A3C},
    InkRow{Ink::kOptimizer, InkGroup::kWork, "optimizer", "optimizer and its state", 0x3A9D84, 0x1B6B5B},
    InkRow{Ink::kHost, InkGroup::kWork, "host", "host work; workspace and everything else", 0x768192, 0x899093},
    InkRow{Ink::kActivation, InkGroup::kWork, "activations", "activations kept for the backward", 0xE67FB8, 0xB23E85},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kInks.size(); ++i) {
    if (static_cast<std::size_t>(kInks[i].ink) != i) return false;
  }
  return kInks.size() == static_cast<std::size_t>(Ink::kCount);
}
static_assert(in_order(), "kInks must list every Ink in its order");

Theme chosen_theme = Theme::kDark;

float to_linear(std::uint32_t channel) {
  const float c = static_cast<float>(channel) / 255.0F;
  return c <= 0.04045F ? c / 12.92F : std::pow((c + 0.055F) / 1.055F, 2.4F);
}

std::uint32_t from_linear(float value) {
  const float c = value <= 0.0031308F ? value * 12.92F : 1.055F * std::pow(value, 1.0F / 2.4F) - 0.055F;
  return static_cast<std::uint32_t>(std::lround(std::clamp(c, 0.0F, 1.0F) * 255.0F));
}

std::uint32_t mix_rgb(std::uint32_t from, std::uint32_t to, float t) {
  std::uint32_t out = 0;
  for (int shift = 16; shift >= 0; shift -= 8) {
    const float a = to_linear((from >> shift) & 0xFFU);
    const float b = to_linear((to >> shift) & 0xFFU);
    out |= from_linear(a + (b - a) * t) << shift;
  }
  return out;
}

std::uint32_t rgb_of(Ink ink) {
  const InkRow& row = kInks[static_cast<std::size_t>(ink)];
  return chosen_theme == Theme::kDark ? row.dark : row.light;
}

}  // namespace

std::span<const InkRow> inks() {
  return kInks;
}

Theme theme() {
  return chosen_theme;
}
void set_theme(Theme chosen) {
  chosen_theme = chosen;
}

std::uint32_t pack(std::uint32_t rgb, float alpha) {
  const auto a = static_cast<std::uint32_t>(std::lround(std::clamp(alpha, 0.0F, 1.0F) * 255.0F));
  return (a << 24U) | ((rgb & 0xFFU) << 16U) | (rgb & 0xFF00U) | ((rgb >> 16U) & 0xFFU);
}

std::uint32_t color(Ink ink, float alpha) {
  return pack(rgb_of(ink), alpha);
}

std::uint32_t mix(Ink from, Ink to, float t, float alpha) {
  return pack(mix_rgb(rgb_of(from), rgb_of(to), std::clamp(t, 0.0F, 1.0F)), alpha);
}

std::uint32_t ramp(float t, float alpha) {
  // Six stops of a blue - teal - yellow path; lightness rises evenly, so order survives any colour blindness.
  static constexpr std::array<std::uint32_t, 6> kStops = {0x2F3E75, 0x2F6690, 0x2E8E8F, 0x4FB57C, 0x9CD35F, 0xF0E75A};
  const float at = std::clamp(t, 0.0F, 1.0F) * static_cast<float>(kStops.size() - 1);
  const auto low = std::min(static_cast<std::size_t>(at), kStops.size() - 2);
  return pack(mix_rgb(kStops[low], kStops[low + 1], at - static_cast<float>(low)), alpha);
}

std::uint32_t text_on(std::uint32_t background) {
  const float luminance = 0.2126F * to_linear(background & 0xFFU) + 0.7152F * to_linear((background >> 8U) & 0xFFU) +
                          0.0722F * to_linear((background >> 16U) & 0xFFU);
  return luminance > 0.22F ? pack(0x11151B) : pack(0xFFFFFF);
}

}  // namespace mbb::viewer
