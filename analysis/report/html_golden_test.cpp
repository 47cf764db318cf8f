// Markup of pages, plots and timelines: whole, escaped, and saying what they must.
#include "analysis/report/html.h"

#include <gtest/gtest.h>

#include "analysis/report/history.h"
#include "analysis/report/timeline_svg.h"

namespace mbb::analysis {
namespace {

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(HtmlGolden, ATableWithEverythingHostileInIt) {
  HtmlPage page("a <b> & \"c\"");
  page.heading("one");
  page.table({"t",
              "title",
              {{"a", "a"}, {"n", "n", Align::kRight}},
              {{{{"<script>alert(1)</script>\x01"}, {"1.5 ms", 1.5, Tone::kBad}}}, {{{"x"}}, "a 'note'"}},
              {"foot"}});
  const std::string html = page.finish();
  EXPECT_NE(html.find("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"), std::string::npos);
  EXPECT_NE(html.find("<tr><td>&lt;script&gt;alert(1)&lt;/script&gt;\\x01</td><td class=\"r bad\">1.5 ms</td></tr>\n"
                      "<tr><td>x</td><td class=\"quiet\">a &#39;note&#39;</td></tr>\n"),
            std::string::npos)
      << html;
  EXPECT_EQ(count(html, "<script>"), 1U) << "ours";
  EXPECT_EQ(count(html, "<table>"), count(html, "</table>"));
}

// Rank 0, one step of `step_ns`: an op on the compute stream and one exchange.
profiler::Trace trace_of(int64_t step_ns, int64_t op_ns, const char* extra) {
  profiler::Trace trace;
  profiler::StringTable strings;
  const auto compute = strings.intern("compute"), tp = strings.intern("tp");
  const auto fc1 = strings.intern("layers.0.mlp.fc1.fwd"), gather = strings.intern("layers.0.attn.gather"),
             other = strings.intern(extra);
  trace.tracks = {{0, profiler::StreamKind::kCompute, compute}, {0, profiler::StreamKind::kTp, tp}};
  trace.steps = {{0, 3, 1000, 1000 + step_ns}};
  const auto span = [&](uint32_t track, int64_t from, int64_t ns, profiler::StringId op, profiler::SpanKind kind) {
    profiler::Span s;
    s.track = track, s.start_ns = 1000 + from, s.end_ns = 1000 + from + ns, s.name = op, s.op = op, s.step = 3,
    s.kind = kind;
    trace.spans.push_back(s);
  };
  span(0, 0, op_ns, fc1, profiler::SpanKind::kCompute);
  span(1, op_ns, 1000, gather, profiler::SpanKind::kCommTp);
  span(0, op_ns + 1000, 500, other, profiler::SpanKind::kCompute);
  trace.strings = strings.strings();
  return trace;
}

TEST(TimelineSvg, TwoRunsOnOneScaleWithTheirDifferencesMarked) {
  const auto a = trace_of(10'000, 5'000, "old.op"), b = trace_of(12'000, 7'000, "new.op");
  const auto svg = timelines_svg({&a, "run A", -1}, {&b, "run B", -1}, 0, "t0");
  ASSERT_TRUE(svg.has_value()) << format(svg.error());
  EXPECT_EQ(count(*svg, "<svg"), 1U);
  EXPECT_NE(svg->find("run A, step 3: 10.0 us"), std::string::npos) << *svg;
  EXPECT_NE(svg->find("run B, step 3: 12.0 us"), std::string::npos);
  EXPECT_EQ(count(*svg, "stroke=\"var(--mark)\""), 4U) << "fc1 twice, and the two ops that only one run has";
  EXPECT_EQ(count(*svg, "url(#hatcht0)"), 2U) << "communication is hatched, not only coloured";
  EXPECT_NE(svg->find("▲"), std::string::npos);
  EXPECT_NE(svg->find("−"), std::string::npos);
  const auto ops = pair_ops({&a, "A", -1}, {&b, "B", -1}, 0);
  ASSERT_TRUE(ops.has_value());
  EXPECT_EQ(ops->front().path, "layers.0.mlp.fc1.fwd");
  EXPECT_EQ(ops->front().change_ns(), 2000);
  EXPECT_EQ(ops->size(), 4U);
}

TEST(TimelineSvg, OneRunAloneAndARankThatWasNotTraced) {
  const auto b = trace_of(12'000, 7'000, "new.op");
  const auto svg = timelines_svg({}, {&b, "run <B>", -1}, 0, "t1");
  ASSERT_TRUE(svg.has_value());
  EXPECT_NE(svg->find("run &lt;B&gt;, step 3"), std::string::npos);
  EXPECT_EQ(count(*svg, "var(--mark)"), 0U);
  const auto none = timelines_svg({}, {&b, "run B", -1}, 5, "t2");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().what, "run B: rank 5 has no traced step");
}

History history_of_nights() {
  baselines::SeriesSummary of;
  of.key = {"identity", "class", "epoch2", "step_time"};
  of.cell = "one", of.class_label = "measured/X×1", of.unit = "ns";
  std::vector<baselines::HistoryPoint> points;
  for (int i = 0; i < 40; ++i) {
    baselines::HistoryPoint p;
    p.run = "r-" + std::to_string(i), p.command = "gate", p.cell = "one", p.class_hash = "class";
    p.created_unix_ns = (int64_t{1'790'000'000} + i * 86'400) * 1'000'000'000;
    p.epoch = i < 30 ? "epoch1" : "epoch2";
    p.build = "c" + std::to_string(i / 2);
    p.value = (i < 20 ? 100e6 : 103e6) * (1 + 0.0005 * ((i * 7) % 5)) * (i < 30 ? 1 : 1.2);
    p.verdict = i == 20 ? "slower" : "same";
    points.push_back(p);
  }
  baselines::HistoryPoint confirmation = points.back();
  confirmation.command = "gate-confirm";
  points.push_back(confirmation);
  baselines::Pin pin;
  pin.id = "b-1", pin.identity_hash = "identity", pin.metric = "step_time", pin.nights = {{100e6, 100.1e6}};
  pin.accepted_unix_ns = points[3].created_unix_ns;
  pin.class_hash = "class", pin.epoch = "epoch1";
  return make_history(of, points, {pin}, points.back().created_unix_ns);
}

TEST(HistoryGolden, EpochsBaselinesAndTheCommitsOfAChange) {
  const History h = history_of_nights();
  EXPECT_EQ(h.points.size(), 40U) << "a confirmation is no night";
  ASSERT_EQ(h.epochs.size(), 2U);
  EXPECT_EQ(h.epochs[1].points.front(), 30U);
  ASSERT_EQ(h.changes.size(), 1U) << "the epoch's own jump is no change of the product";
  EXPECT_EQ(h.changes[0].change.at, 20U);
  EXPECT_EQ(h.changes[0].good, "c9");
  EXPECT_EQ(h.changes[0].bad, "c10");
  ASSERT_EQ(h.baselines.size(), 1U);
  EXPECT_TRUE(h.baselines[0].stands);
  EXPECT_EQ(h.baselines[0].points.front(), 3U);
  EXPECT_EQ(h.baselines[0].points.back(), 29U) << "it stands in its own epoch only";
  const std::string changes = to_text(changes_table(h));
  EXPECT_NE(changes.find("+3.00 %"), std::string::npos) << changes;
  EXPECT_NE(changes.find("c9..c10"), std::string::npos) << changes;
  EXPECT_EQ(changes.find("0 or below"), std::string::npos) << changes;
  EXPECT_EQ(changes.find("looked for"), std::string::npos) << changes;
  History none = h;
  none.changes.clear();
  EXPECT_NE(to_text(changes_table(none)).find("from an epoch's 7th point on"), std::string::npos);
  History negative = h;
  negative.points[3].value = -0.5;
  const std::string said = to_text(changes_table(negative));
  EXPECT_NE(said.find("1 of 40 points are 0 or below and have no ratios"), std::string::npos) << said;
  EXPECT_NE(to_json(h).find("\"good_build\": \"c9\", \"bad_build\": \"c10\""), std::string::npos);
}

TEST(HistoryGolden, PlotInText) {
  EXPECT_EQ(plot_text(history_of_nights(), 40, 6),
            "  125.0 ms |                              oooooooooo\n"
            "           |                              :\n"
            "           |                              :\n"
            "  109.3 ms |                              :\n"
            "           |                    oooooooooo:\n"
            "   98.8 ms |oooooooooooooooooooo----------:\n"
            "           |____________________^___________________\n"
            "            2026-09-21 .. 2026-10-30\n");
  EXPECT_EQ(plot_text({}), "");
}

TEST(HistoryGolden, PlotInSvg) {
  const std::string svg = plot_svg(history_of_nights(), "h0");
  EXPECT_EQ(count(svg, "<circle"), 39U);
  EXPECT_EQ(count(svg, "fill=\"var(--bad)\""), 1U) << "the red night is a square";
  EXPECT_EQ(count(svg, "epoch epoch2"), 1U);
  EXPECT_EQ(count(svg, "▲ +3.00 %"), 1U);
  EXPECT_EQ(count(svg, "baseline b-1"), 1U);
  EXPECT_EQ(plot_svg({}, "h1"), "");
}

}  // namespace
}  // namespace mbb::analysis
