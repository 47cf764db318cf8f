// Markup of a page, and its one style sheet.
#include "analysis/report/html.h"

#include <fmt/core.h>

#include "profiler/base/text.h"

namespace mbb::analysis {
namespace {

// Blue, orange and grey are told apart by colour-blind eyes; red and green never stand for the two ends of a scale.
constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--muted:#5b6470;--line:#d6dae0;--head:#f3f5f8;--good:#0b5fae;
--bad:#b3400e;--warn:#7a5a00;--compute:#5b8fd0;--comm:#e0812e;--copy:#8a6fb0;--host:#9aa3ad;--mark:#b3400e;--base:#0b5fae}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--muted:#9aa3ad;--line:#333a43;--head:#1d2228;
--good:#6fb3f2;--bad:#f29a5c;--warn:#e2c15a;--compute:#4f86c9;--comm:#d9782a;--copy:#9a80c2;--host:#7d8792;--mark:#f29a5c;
--base:#6fb3f2}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"DejaVu Sans",sans-serif;margin:0 auto;padding:24px;
max-width:1280px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px;border-bottom:1px solid var(--line)}
p{margin:4px 0 12px;color:var(--muted)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{background:var(--head);white-space:nowrap;font-weight:600}.r{text-align:right;white-space:nowrap}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}.warn{color:var(--warn);font-weight:600}
.quiet,.foot{color:var(--muted);font-size:13px}
figure{margin:12px 0 20px}figcaption{color:var(--muted);font-size:13px;margin-top:4px}
svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,"DejaVu Sans",sans-serif;fill:var(--fg)}
svg .m{fill:var(--muted)}svg .grid{stroke:var(--line)}
button{font:inherit;font-size:12px;color:inherit;background:var(--head);border:1px solid var(--line);border-radius:4px;
margin-right:4px;padding:2px 10px;cursor:pointer}
)css";

constexpr std::string_view kScript = "function zoom(b,n){b.parentNode.querySelector('svg').style.width=(100*n)+'%'}";

const char* class_of(Tone tone) {
  switch (tone) {
    case Tone::kPlain: return "";
    case Tone::kGood: return "good";
    case Tone::kBad: return "bad";
    case Tone::kWarning: return "warn";
    case Tone::kQuiet: return "quiet";
  }
  return "";
}

std::string cell_of(const char* tag, const std::string& text, Align align, const char* tone, size_t span = 1) {
  std::string classes = align == Align::kRight ? "r" : "";
  if (*tone != 0) classes += (classes.empty() ? "" : " ") + std::string(tone);
  return fmt::format("<{0}{1}{2}>{3}</{0}>", tag, classes.empty() ? "" : fmt::format(" class=\"{}\"", classes),
                     span > 1 ? fmt::format(" colspan=\"{}\"", span) : "", html_escape(text));
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out = printable(text, 4000);
  for (const auto& [from, to] : {std::pair{"&", "&amp;"}, std::pair{"<", "&lt;"}, std::pair{">", "&gt;"},
                                 std::pair{"\"", "&quot;"}, std::pair{"'", "&#39;"}})
    out = replace_all(out, from, to);
  return out;
}

void HtmlPage::heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", html_escape(text));
}

void HtmlPage::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", html_escape(text));
}

void HtmlPage::table(const Table& table) {
  if (!table.title.empty()) paragraph(table.title);
  body_ += "<div class=\"wide\"><table>\n<tr>";
  for (const Column& column : table.columns) body_ += cell_of("th", column.title, column.align, "");
  body_ += "</tr>\n";
  for (const Row& row : table.rows) {
    body_ += "<tr>";
    for (size_t i = 0; i < row.values.size(); ++i)
      body_ += cell_of("td", row.values[i].text, table.columns[i].align, class_of(row.values[i].tone));
    if (!row.note.empty() && row.values.size() < table.columns.size())
      body_ += cell_of("td", row.note, Align::kLeft, "quiet", table.columns.size() - row.values.size());
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
  for (const std::string& line : table.footer)
    body_ += fmt::format("<div class=\"foot\">{}</div>\n", html_escape(line));
}

void HtmlPage::figure(const std::string& markup, std::string_view caption, bool zooms) {
  body_ += "<figure>";
  if (zooms)
    for (const int n : {1, 3, 10}) body_ += fmt::format("<button onclick=\"zoom(this,{0})\">{0}×</button>", n);
  body_ +=
      fmt::format("<div class=\"wide\">{}</div><figcaption>{}</figcaption></figure>\n", markup, html_escape(caption));
}

std::string HtmlPage::finish() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n<script>{2}</script>\n</head><body>\n<h1>{0}</h1>\n{3}</body></html>\n",
      html_escape(title_), kStyle, kScript, body_);
}

}  // namespace mbb::analysis
