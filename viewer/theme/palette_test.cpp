// The palette is readable and its groups stay apart for colour-blind eyes.
#include "viewer/theme/palette.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace mbb::viewer {
namespace {

using Rgb = std::array<double, 3>;

Rgb linear(std::uint32_t rgb) {
  Rgb out{};
  for (int i = 0; i < 3; ++i) {
    const double c = static_cast<double>((rgb >> (16 - 8 * i)) & 0xFFU) / 255;
    out[static_cast<std::size_t>(i)] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return out;
}

double luminance(std::uint32_t rgb) {
  const Rgb c = linear(rgb);
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
}

double contrast(std::uint32_t a, std::uint32_t b) {
  const double high = std::max(luminance(a), luminance(b));
  const double low = std::min(luminance(a), luminance(b));
  return (high + 0.05) / (low + 0.05);
}

// Severe protanopia, deuteranopia and tritanopia: the matrices of Machado, Oliveira and Fernandes (2009), linear RGB.
constexpr std::array<std::array<double, 9>, 4> kEyes = {
    {{1, 0, 0, 0, 1, 0, 0, 0, 1},
     {0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998},
     {0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881},
     {1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900}}};

Rgb lab(std::uint32_t rgb, const std::array<double, 9>& eye) {
  const Rgb c = linear(rgb);
  Rgb seen{};
  for (std::size_t i = 0; i < 3; ++i)
    seen[i] = std::clamp(eye[i * 3] * c[0] + eye[i * 3 + 1] * c[1] + eye[i * 3 + 2] * c[2], 0.0, 1.0);
  const Rgb xyz = {(0.4124 * seen[0] + 0.3576 * seen[1] + 0.1805 * seen[2]) / 0.95047,
                   0.2126 * seen[0] + 0.7152 * seen[1] + 0.0722 * seen[2],
                   (0.0193 * seen[0] + 0.1192 * seen[1] + 0.9505 * seen[2]) / 1.08883};
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  return {116 * f(xyz[1]) - 16, 500 * (f(xyz[0]) - f(xyz[1])), 200 * (f(xyz[1]) - f(xyz[2]))};
}

double distance(std::uint32_t a, std::uint32_t b, const std::array<double, 9>& eye) {
  const Rgb x = lab(a, eye);
  const Rgb y = lab(b, eye);
  return std::sqrt(std::pow(x[0] - y[0], 2) + std::pow(x[1] - y[1], 2) + std::pow(x[2] - y[2], 2));
}

TEST(Palette, GroupsStayApartForEveryEye) {
  for (const bool dark : {true, false}) {
    for (const InkRow& a : inks()) {
      for (const InkRow& b : inks()) {
        if (a.group == InkGroup::kChrome || a.group != b.group || a.ink >= b.ink) continue;
        for (const auto& eye : kEyes) {
          EXPECT_GE(distance(dark ? a.dark : a.light, dark ? b.dark : b.light, eye), 10.0)
              << a.name << " and " << b.name << (dark ? " dark" : " light") << " eye " << &eye - kEyes.data();
        }
      }
    }
  }
}

TEST(Palette, TextReadsOnEverySurface) {
  const auto find = [](Ink ink) { return inks()[static_cast<std::size_t>(ink)]; };
  for (const Ink surface : {Ink::kBackground, Ink::kSurface, Ink::kRaised, Ink::kSelected}) {
    for (const bool dark : {true, false}) {
      const auto pick = [&](Ink ink) { return dark ? find(ink).dark : find(ink).light; };
      EXPECT_GE(contrast(pick(Ink::kText), pick(surface)), 7.0) << find(surface).name;
      EXPECT_GE(contrast(pick(Ink::kMuted), pick(surface)), 4.5) << find(surface).name << dark;
      if (surface == Ink::kSelected) continue;
      EXPECT_GE(contrast(pick(Ink::kFaint), pick(surface)), 3.0) << find(surface).name << dark;
      if (surface == Ink::kRaised) continue;
      for (const Ink ink : {Ink::kFaster, Ink::kSlower, Ink::kWarning, Ink::kRunA, Ink::kRunB, Ink::kAccent}) {
        EXPECT_GE(contrast(pick(ink), pick(surface)), 4.5) << find(ink).name << " on " << find(surface).name << dark;
      }
    }
  }
}

TEST(Palette, EveryInkSaysItsMeaning) {
  std::set<std::string_view> names;
  for (const InkRow& row : inks()) {
    EXPECT_FALSE(row.meaning.empty());
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
}

TEST(Palette, RampRisesInLightness) {
  double last = -1;
  for (int i = 0; i <= 20; ++i) {
    const std::uint32_t abgr = ramp(static_cast<float>(i) / 20);
    const std::uint32_t rgb = ((abgr & 0xFFU) << 16U) | (abgr & 0xFF00U) | ((abgr >> 16U) & 0xFFU);
    EXPECT_GT(luminance(rgb), last) << i;
    last = luminance(rgb);
  }
}

}  // namespace
}  // namespace mbb::viewer
