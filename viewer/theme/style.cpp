// Font search and style tables.
#include "viewer/theme/style.h"

#include <imgui.h>
#ifdef MBB_VIEWER_FREETYPE
#include <imgui_freetype.h>
#endif

#include <array>
#include <cmath>
#include <filesystem>

namespace mbb::viewer {
namespace {

namespace fs = std::filesystem;

// Families of Debian packages, best first; every member must exist. Digits of all of them share one width.
struct Family {
  const char* text;
  const char* bold;
  const char* mono;
};
constexpr std::array kFamilies = {
    Family{"/usr/share/fonts/truetype/dejavu/DejaVuSansCondensed.ttf",
           "/usr/share/fonts/truetype/dejavu/DejaVuSansCondensed-Bold.ttf",
           "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"},
    Family{"/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf",
           "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"},
    Family{"/usr/share/fonts/truetype/noto/NotoSans-Regular.ttf", "/usr/share/fonts/truetype/noto/NotoSans-Bold.ttf",
           "/usr/share/fonts/truetype/noto/NotoSansMono-Regular.ttf"},
    Family{"/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
           "/usr/share/fonts/truetype/liberation/LiberationSans-Bold.ttf",
           "/usr/share/fonts/truetype/liberation/LiberationMono-Regular.ttf"},
};

// Latin, Greek, punctuation, arrows, mathematics, shapes.
constexpr std::array<ImWchar, 21> kGlyphs = {0x0020, 0x017F, 0x0370, 0x03FF, 0x2010, 0x2044, 0x2070,
                                             0x209F, 0x2190, 0x2199, 0x2200, 0x22FF, 0x25A0, 0x25FF,
                                             0x26A0, 0x26A1, 0x2605, 0x2606, 0x2713, 0x2717, 0};

constexpr float kTextPx = 14.0F;
constexpr float kSmallPx = 12.0F;

Fonts loaded;
float current_scale = 1.0F;

ImVec4 rgba(Ink ink, float alpha = 1.0F) {
  return ImGui::ColorConvertU32ToFloat4(color(ink, alpha));
}

const Family* first_family() {
  for (const Family& family : kFamilies) {
    std::error_code ignored;
    if (fs::exists(family.text, ignored) && fs::exists(family.bold, ignored) && fs::exists(family.mono, ignored)) {
      return &family;
    }
  }
  return nullptr;
}

void set_colors() {
  ImVec4* c = ImGui::GetStyle().Colors;
  c[ImGuiCol_Text] = rgba(Ink::kText);
  c[ImGuiCol_TextDisabled] = rgba(Ink::kMuted);
  c[ImGuiCol_WindowBg] = rgba(Ink::kBackground);
  c[ImGuiCol_ChildBg] = rgba(Ink::kSurface);
  c[ImGuiCol_PopupBg] = rgba(Ink::kRaised);
  c[ImGuiCol_Border] = rgba(Ink::kBorder);
  c[ImGuiCol_BorderShadow] = ImVec4(0, 0, 0, 0);
  c[ImGuiCol_FrameBg] = rgba(Ink::kRaised);
  c[ImGuiCol_FrameBgHovered] = rgba(Ink::kBorder);
  c[ImGuiCol_FrameBgActive] = rgba(Ink::kBorder);
  c[ImGuiCol_ScrollbarBg] = ImVec4(0, 0, 0, 0);
  c[ImGuiCol_ScrollbarGrab] = rgba(Ink::kBorder);
  c[ImGuiCol_ScrollbarGrabHovered] = rgba(Ink::kFaint);
  c[ImGuiCol_ScrollbarGrabActive] = rgba(Ink::kMuted);
  c[ImGuiCol_CheckMark] = rgba(Ink::kAccent);
  c[ImGuiCol_SliderGrab] = rgba(Ink::kAccent);
  c[ImGuiCol_SliderGrabActive] = rgba(Ink::kAccent);
  c[ImGuiCol_Button] = rgba(Ink::kRaised);
  c[ImGuiCol_ButtonHovered] = rgba(Ink::kBorder);
  c[ImGuiCol_ButtonActive] = rgba(Ink::kSelected);
  c[ImGuiCol_Header] = rgba(Ink::kSelected);
  c[ImGuiCol_HeaderHovered] = rgba(Ink::kRaised);
  c[ImGuiCol_HeaderActive] = rgba(Ink::kSelected);
  c[ImGuiCol_Separator] = rgba(Ink::kBorder);
  c[ImGuiCol_SeparatorHovered] = rgba(Ink::kAccent);
  c[ImGuiCol_SeparatorActive] = rgba(Ink::kAccent);
  c[ImGuiCol_TableHeaderBg] = rgba(Ink::kRaised);
  c[ImGuiCol_TableBorderStrong] = rgba(Ink::kBorder);
  c[ImGuiCol_TableBorderLight] = rgba(Ink::kGrid);
  c[ImGuiCol_TableRowBg] = ImVec4(0, 0, 0, 0);
  c[ImGuiCol_TableRowBgAlt] = rgba(Ink::kRaised, 0.35F);
  c[ImGuiCol_TextSelectedBg] = rgba(Ink::kAccent, 0.35F);
  c[ImGuiCol_NavHighlight] = rgba(Ink::kAccent);
  c[ImGuiCol_ModalWindowDimBg] = rgba(Ink::kBackground, 0.6F);
}

}  // namespace

const Fonts& load_fonts(float new_scale) {
  ImFontAtlas& atlas = *ImGui::GetIO().Fonts;
  atlas.Clear();
  loaded = Fonts{};
#ifdef MBB_VIEWER_FREETYPE
  atlas.FontBuilderIO = ImGuiFreeType::GetBuilderForFreeType();
  atlas.FontBuilderFlags = ImGuiFreeTypeBuilderFlags_LightHinting;
#endif
  const float text_px = std::round(kTextPx * new_scale);
  const float small_px = std::round(kSmallPx * new_scale);
  if (const Family* family = first_family()) {
    const ImWchar* glyphs = kGlyphs.data();
    loaded.text = atlas.AddFontFromFileTTF(family->text, text_px, nullptr, glyphs);
    loaded.bold = atlas.AddFontFromFileTTF(family->bold, text_px, nullptr, glyphs);
    loaded.mono = atlas.AddFontFromFileTTF(family->mono, small_px, nullptr, glyphs);
    loaded.small = atlas.AddFontFromFileTTF(family->text, small_px, nullptr, glyphs);
    loaded.source = family->text;
  }
  if (loaded.text == nullptr || loaded.bold == nullptr || loaded.mono == nullptr || loaded.small == nullptr) {
    atlas.Clear();
    ImFontConfig config;
    config.SizePixels = std::max(13.0F, std::round(13.0F * new_scale));
    ImFont* embedded = atlas.AddFontDefault(&config);
    loaded = Fonts{embedded, embedded, embedded, embedded, "embedded"};
  }
  ImGui::GetIO().FontDefault = loaded.text;
  return loaded;
}

const Fonts& fonts() {
  return loaded;
}

void apply_style(Theme chosen, float new_scale) {
  set_theme(chosen);
  current_scale = new_scale;
  ImGuiStyle& style = ImGui::GetStyle();
  style = ImGuiStyle();
  style.WindowPadding = ImVec2(10, 8);
  style.FramePadding = ImVec2(7, 3);
  style.CellPadding = ImVec2(7, 2);
  style.ItemSpacing = ImVec2(8, 5);
  style.ItemInnerSpacing = ImVec2(6, 4);
  style.ScrollbarSize = 11;
  style.WindowRounding = 0;
  style.ChildRounding = 4;
  style.FrameRounding = 4;
  style.PopupRounding = 4;
  style.ScrollbarRounding = 6;
  style.GrabRounding = 4;
  style.WindowBorderSize = 0;
  style.ChildBorderSize = 1;
  style.PopupBorderSize = 1;
  style.FrameBorderSize = 0;
  style.IndentSpacing = 16;
  style.AntiAliasedLinesUseTex = true;
  style.ScaleAllSizes(new_scale);
  style.ChildBorderSize = 1;
  style.PopupBorderSize = 1;
  set_colors();
}

float px(float design_pixels) {
  return std::round(design_pixels * current_scale);
}
float scale() {
  return current_scale;
}

}  // namespace mbb::viewer
