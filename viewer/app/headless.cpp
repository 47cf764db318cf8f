// The stage without a display: ImGui lays everything out and nothing is drawn.
#include <imgui.h>

#include <condition_variable>
#include <mutex>

#include "viewer/app/input_script.h"
#include "viewer/app/stage.h"

namespace mbb::viewer {
namespace {

class Headless : public Stage {
 public:
  explicit Headless(const StageOptions& options) {
    ImGui::CreateContext();
    ImGuiIO& io = ImGui::GetIO();
    io.IniFilename = nullptr;
    io.DisplaySize = ImVec2(static_cast<float>(options.width), static_cast<float>(options.height));
    map_keys();
  }
  ~Headless() override { ImGui::DestroyContext(); }

  void frame(const ScriptedInput& input, const std::function<void()>& draw) override {
    ImGuiIO& io = ImGui::GetIO();
    if (!fonts_built_) {
      unsigned char* ignored = nullptr;
      int width = 0;
      int height = 0;
      io.Fonts->GetTexDataAsAlpha8(&ignored, &width, &height);
      fonts_built_ = true;
    }
    io.DeltaTime = 1.0F / 60;
    apply_scripted(input);
    ImGui::NewFrame();
    draw();
    ImGui::Render();
  }

  bool wait(double seconds) override {
    std::unique_lock lock(mutex_);
    const auto woken = [this] { return woken_; };
    if (seconds < 0)
      wake_.wait(lock, woken);
    else
      wake_.wait_for(lock, std::chrono::duration<double>(seconds), woken);
    woken_ = false;
    return false;
  }

  bool closed() const override { return false; }
  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    wake_.notify_all();
  }
  float screen_scale() const override { return 1.0F; }
  void fonts_changed() override { fonts_built_ = false; }
  Status resize(int width, int height) override {
    ImGui::GetIO().DisplaySize = ImVec2(static_cast<float>(width), static_cast<float>(height));
    return {};
  }
  Result<Image> pixels() override {
    return fail(ErrorCode::kUnavailable, "this stage draws no pixels", "open a window");
  }

 private:
  bool fonts_built_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

}  // namespace

std::unique_ptr<Stage> open_headless(const StageOptions& options) {
  return std::make_unique<Headless>(options);
}

}  // namespace mbb::viewer
