// Scripts: a person's keys, clicks and drags as text, with statements about what must be on the screen after them.
//
// One command a line, `#` begins a comment, text with blanks stands in double quotes:
//   wait                      until nothing loads or moves (fails after 20 s)
//   panel NAME                brings a panel to the front
//   select FIELD=VALUE        sets one field of the selection
//   key CHORD                 Ctrl+F, Escape, W, ?, ...
//   hold CHORD FRAMES         keeps a key down for some frames
//   type TEXT                 into the focused field
//   click NAME [ctrl] [right] [double]       the middle of a probe's rectangle
//   hover NAME [DX DY]        DX, DY: away from the middle, in pixels
//   drag NAME DX DY           from the middle
//   wheel NAME N              notches; positive is away from the person
//   expect NAME VALUE         a probe's value equals VALUE; also: expect NAME ~ PART, expect NAME > N, expect NAME < N
//   expect-item NAME          a probe's rectangle is on the screen
//   clipboard ~ PART          the clipboard holds PART
//   theme dark|light    resize WxH    screenshot FILE    print NAME
#pragma once

#include <string>
#include <vector>

#include "profiler/base/error.h"
#include "viewer/app/app.h"
#include "viewer/app/stage.h"

namespace mbb::viewer {

struct ScriptLine {
  int line = 0;
  std::string command;
  std::vector<std::string> words;
};

// Parses without running: unknown commands and wrong word counts are errors that name the line.
Result<std::vector<ScriptLine>> parse_script(const std::string& text);

// Runs frames by hand: for scripts, screenshots and tests.
class ScriptRunner {
 public:
  ScriptRunner(Stage& stage, App& app, float scale);

  // The first failure names its line; `output` gets what `print` printed.
  Status run(const std::vector<ScriptLine>& script);
  Status run_line(const ScriptLine& line);
  // One frame with the input as it stands.
  void frame();
  // Frames until the app is settled, or an error after `limit_s` seconds.
  Status settle(double limit_s = 20);
  const std::string& output() const { return output_; }

 private:
  Status expect(const ScriptLine& line);
  Status point_at(const std::string& probe);
  Status press(const std::string& chord, int frames);
  Status click(const ScriptLine& line);
  Status drag(const ScriptLine& line);
  Status screenshot(const std::string& file);

  Stage& stage_;
  App& app_;
  float scale_;
  ScriptedInput input_;
  std::string output_;
};

}  // namespace mbb::viewer
