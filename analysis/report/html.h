// A self-contained HTML page: its style lies inside, and it asks nothing of a network. Dark and light as the reader's
// system has it. What a colour says is also a word, a sign or a hatching.
#pragma once

#include <string>
#include <string_view>

#include "analysis/report/table.h"

namespace mbb::analysis {

// Text as content or attribute value; control bytes are made visible.
std::string html_escape(std::string_view text);

class HtmlPage {
 public:
  explicit HtmlPage(std::string title) : title_(std::move(title)) {}

  void heading(std::string_view text);
  void paragraph(std::string_view text);
  void table(const Table& table);
  // Markup of ours (plot_svg, timelines_svg); what users named must have been escaped. `zooms`: with buttons that widen
  // it.
  void figure(const std::string& markup, std::string_view caption, bool zooms = false);

  // The whole document.
  std::string finish() const;

 private:
  std::string title_;
  std::string body_;
};

}  // namespace mbb::analysis
