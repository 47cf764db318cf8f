// What a panel shows when it has nothing to show: empty, loading, failed; and short notices.
#pragma once

#include <string>
#include <string_view>

#include "profiler/base/error.h"

namespace mbb::viewer {

// Each fills the space that is left: a title, then what to do about it.
void draw_empty(std::string_view title, std::string_view advice);
void draw_loading(std::string_view what);
void draw_error(const Error& error);

// A notice over the corner of the window for some seconds ("12 rows copied as Markdown").
void notify(std::string text);
// Draws it; false when none is left to show. `now_s` is a steady clock.
bool draw_notice(double now_s);
// True while a notice is up, so that frames go on until it has gone.
bool notice_visible();

// "N of M" and other quiet remarks in a header line.
void muted(std::string_view text);
// A caption above a block.
void heading(std::string_view text);
// A short coloured word with a tinted background ("ok", "slower").
void badge(std::string_view text, unsigned packed_color);
// A tool tip on the last item, wrapped.
void hover_text(std::string_view text);

}  // namespace mbb::viewer
