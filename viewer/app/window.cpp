// The stage with a window: GLFW for the window and its input, OpenGL 3 for drawing.
#include <GLFW/glfw3.h>
#include <fmt/core.h>
#include <imgui.h>
#include <imgui_impl_glfw.h>
#include <imgui_impl_opengl3.h>

#include <atomic>

#include "viewer/app/input_script.h"
#include "viewer/app/stage.h"
#include "viewer/theme/palette.h"
#include "viewer/widgets/keys.h"

namespace mbb::viewer {
namespace {

static_assert(kKeyA == GLFW_KEY_A && kKeyEscape == GLFW_KEY_ESCAPE && kKeyF1 == GLFW_KEY_F1 && kKeyEnd == GLFW_KEY_END);

std::string last_glfw_error;
void remember_error(int code, const char* text) {
  last_glfw_error = fmt::format("{} (GLFW error {:#x})", text, code);
}

class Window : public Stage {
 public:
  explicit Window(GLFWwindow* window) : window_(window) {
    glfwSetWindowUserPointer(window_, this);
    // ImGui's backend chains to the callbacks that are there before it: these only say that something happened.
    glfwSetCursorPosCallback(window_, [](GLFWwindow* w, double, double) { note(w); });
    glfwSetMouseButtonCallback(window_, [](GLFWwindow* w, int, int, int) { note(w); });
    glfwSetScrollCallback(window_, [](GLFWwindow* w, double, double) { note(w); });
    glfwSetKeyCallback(window_, [](GLFWwindow* w, int, int, int, int) { note(w); });
    glfwSetCharCallback(window_, [](GLFWwindow* w, unsigned) { note(w); });
    glfwSetWindowFocusCallback(window_, [](GLFWwindow* w, int) { note(w); });
    glfwSetCursorEnterCallback(window_, [](GLFWwindow* w, int) { note(w); });
    glfwSetFramebufferSizeCallback(window_, [](GLFWwindow* w, int, int) { note(w); });
    glfwSetWindowRefreshCallback(window_, [](GLFWwindow* w) { note(w); });
    glfwSetWindowContentScaleCallback(window_, [](GLFWwindow* w, float, float) { note(w); });
    ImGui::CreateContext();
    ImGui::GetIO().IniFilename = nullptr;
  }

  ~Window() override {
    if (renderer_) ImGui_ImplOpenGL3_Shutdown();
    if (platform_) ImGui_ImplGlfw_Shutdown();
    ImGui::DestroyContext();
    glfwDestroyWindow(window_);
    glfwTerminate();
  }

  Status start() {
    platform_ = ImGui_ImplGlfw_InitForOpenGL(window_, true);
    if (!platform_) return fail(ErrorCode::kUnavailable, "ImGui cannot use this window");
    renderer_ = ImGui_ImplOpenGL3_Init("#version 130");
    if (!renderer_) {
      return fail(ErrorCode::kUnavailable, "OpenGL 3.0 is not available here",
                  "install libgl1-mesa-dri, Mesa's software renderer");
    }
    map_keys();
    return {};
  }

  void frame(const ScriptedInput& input, const std::function<void()>& draw) override {
    ImGui_ImplOpenGL3_NewFrame();
    ImGui_ImplGlfw_NewFrame();
    apply_scripted(input);
    ImGui::NewFrame();
    draw();
    ImGui::Render();
    glfwGetFramebufferSize(window_, &width_, &height_);
    glViewport(0, 0, width_, height_);
    const ImVec4 ground = ImGui::ColorConvertU32ToFloat4(color(Ink::kBackground));
    glClearColor(ground.x, ground.y, ground.z, 1);
    glClear(GL_COLOR_BUFFER_BIT);
    ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
    // Read back before the swap: afterwards the back buffer is undefined.
    if (input.active) read_back();
    glfwSwapBuffers(window_);
  }

  bool wait(double seconds) override {
    if (seconds < 0)
      glfwWaitEvents();
    else if (seconds == 0)
      glfwPollEvents();
    else
      glfwWaitEventsTimeout(seconds);
    return noted_.exchange(false);
  }

  bool closed() const override { return glfwWindowShouldClose(window_) != 0; }
  void wake() override { glfwPostEmptyEvent(); }

  float screen_scale() const override {
    float x = 1;
    float y = 1;
    glfwGetWindowContentScale(window_, &x, &y);
    return x > 0 ? x : 1.0F;
  }

  void fonts_changed() override { ImGui_ImplOpenGL3_DestroyFontsTexture(); }

  Status resize(int width, int height) override {
    glfwSetWindowSize(window_, width, height);
    for (int i = 0; i < 200; ++i) {
      glfwWaitEventsTimeout(0.01);
      int w = 0;
      int h = 0;
      glfwGetFramebufferSize(window_, &w, &h);
      if (w == width && h == height) return {};
    }
    return fail(ErrorCode::kUnavailable, fmt::format("the display does not give a window of {}x{}", width, height),
                "use a larger screen, such as xvfb-run -s '-screen 0 2560x1600x24'");
  }

  Result<Image> pixels() override {
    if (image_.rgb.empty()) return fail(ErrorCode::kUnavailable, "no frame was drawn");
    return image_;
  }

 private:
  static void note(GLFWwindow* window) { static_cast<Window*>(glfwGetWindowUserPointer(window))->noted_ = true; }

  void read_back() {
    const auto width = static_cast<std::size_t>(width_);
    const auto height = static_cast<std::size_t>(height_);
    std::vector<std::uint8_t> bottom_up(width * height * 3);
    glPixelStorei(GL_PACK_ALIGNMENT, 1);
    glReadPixels(0, 0, width_, height_, GL_RGB, GL_UNSIGNED_BYTE, bottom_up.data());
    image_ = Image{width_, height_, std::vector<std::uint8_t>(bottom_up.size())};
    const std::size_t stride = width * 3;
    for (std::size_t row = 0; row < height; ++row) {
      std::copy_n(bottom_up.data() + (height - 1 - row) * stride, stride, image_.rgb.data() + row * stride);
    }
  }

  GLFWwindow* window_;
  bool platform_ = false;
  bool renderer_ = false;
  std::atomic<bool> noted_{true};
  int width_ = 0;
  int height_ = 0;
  Image image_;
};

}  // namespace

Result<std::unique_ptr<Stage>> open_window(const StageOptions& options) {
  glfwSetErrorCallback(remember_error);
  if (glfwInit() == 0) {
    return fail(ErrorCode::kUnavailable, "no display: " + last_glfw_error,
                "on a machine without one: xvfb-run -a mbbench view ..., or mbbench show --timeline");
  }
  glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
  glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 0);
  glfwWindowHint(GLFW_VISIBLE, options.visible ? GLFW_TRUE : GLFW_FALSE);
  GLFWwindow* window = glfwCreateWindow(options.width, options.height, options.title.c_str(), nullptr, nullptr);
  if (window == nullptr) {
    glfwTerminate();
    return fail(ErrorCode::kUnavailable, "no OpenGL 3 window: " + last_glfw_error,
                "install libgl1-mesa-dri, Mesa's software renderer");
  }
  glfwMakeContextCurrent(window);
  glfwSwapInterval(1);
  auto stage = std::make_unique<Window>(window);
  MB_TRY(stage->start());
  return stage;
}

}  // namespace mbb::viewer
