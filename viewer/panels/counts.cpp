// Panel "counts": what the launches of a cell counted, above all what was dropped or failed. The smallest panel: one
// file and one line in panels.cpp; begin another one from it.
#include <algorithm>

#include "viewer/panels/describe.h"
#include "viewer/panels/panel.h"
#include "viewer/widgets/states.h"
#include "viewer/widgets/text.h"

namespace mbb::viewer {
namespace {

TableData counts_table(const baselines::Cell& cell) {
  TableData data;
  data.columns = {{"count", "", Align::kLeft, 0, "By name; what was lost or failed stands out.", false}};
  for (const baselines::Launch& launch : cell.launches) {
    data.columns.push_back({"launch " + std::to_string(launch.index), "", Align::kRight, 110, "", false});
    for (const baselines::NamedCount& count : launch.counts) {
      if (std::find(data.keys.begin(), data.keys.end(), count.name) == data.keys.end()) data.keys.push_back(count.name);
    }
  }
  for (const std::string& name : data.keys) {
    std::vector<TableCell> row = {text_cell(name)};
    for (const baselines::Launch& launch : cell.launches) {
      const auto found = std::find_if(launch.counts.begin(), launch.counts.end(),
                                      [&](const baselines::NamedCount& count) { return count.name == name; });
      if (found == launch.counts.end()) {
        row.push_back(number_cell("-", std::numeric_limits<double>::quiet_NaN(), Ink::kFaint));
        continue;
      }
      const auto value = static_cast<double>(found->count);
      row.push_back(is_loss(*found) ? number_cell("\xE2\x9A\xA0 " + count_text(value), value, Ink::kWarning)
                                    : number_cell(count_text(value), value));
    }
    data.rows.push_back(std::move(row));
  }
  return data;
}

class CountsPanel : public Panel {
 public:
  void draw(Session& session) override {
    if (session.run_a.error() != nullptr) return draw_error(*session.run_a.error());
    const baselines::Cell* cell = session.cell_a();
    if (cell == nullptr)
      return session.loading() ? draw_loading("reading the run")
                               : draw_empty("No cell chosen", "Choose a run in the list of runs (key 1).");
    if (const std::string key = session.run_a.value_key() + "|" + cell->name; key != built_) {
      data_ = counts_table(*cell);
      state_.dirty = true;
      built_ = key;
    }
    if (data_.rows.empty()) return draw_empty("Nothing was counted", "The launches of this cell stored no counts.");
    heading(clean(cell->name, 100));
    draw_table("counts", data_, state_, {});
  }

 private:
  TableData data_;
  TableState state_;
  std::string built_;
};

}  // namespace

std::unique_ptr<Panel> make_counts_panel() {
  return std::make_unique<CountsPanel>();
}

}  // namespace mbb::viewer
