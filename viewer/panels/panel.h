// A panel: one file, and one line in the array of panels.cpp.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "viewer/panels/session.h"

namespace mbb::viewer {

class Panel {
 public:
  virtual ~Panel() = default;
  // Draws into the window that is current. Shows an empty, a loading or an error state where it has no data.
  virtual void draw(Session& session) = 0;
  // True while a load of its own has not come back, so that screenshots wait for it.
  virtual bool loading() const { return false; }
};

struct PanelEntry {
  std::string_view name;     // "timeline": on the command line and in scripts
  std::string_view title;    // "Timeline"
  std::string_view purpose;  // one sentence, on hover and in the help
  std::unique_ptr<Panel> (*make)();
};

// Every panel in the order of the navigator: keys 1 to 9 and 0.
std::span<const PanelEntry> panels();
const PanelEntry* find_panel(std::string_view name);

}  // namespace mbb::viewer
