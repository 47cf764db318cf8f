// Layers of settings and command lines: who wins, where each value came from, and what refusals say.
#include "suites/matrix/settings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "profiler/base/file.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {
namespace {

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    std::string pattern = testing::TempDir() + "mbb_settings_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~SettingsTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(make_dirs(std::filesystem::path(path).parent_path().string()));
    EXPECT_TRUE(write_file(path, text));
    return path;
  }
  // The error's text with this test's folder as DIR.
  std::string refusal(const Result<Settings>& result) const {
    if (result) return "accepted";
    std::string text = format(result.error());
    for (size_t at = text.find(folder_); at != std::string::npos; at = text.find(folder_))
      text.replace(at, folder_.size(), "DIR");
    return text;
  }

  std::string folder_;
};

std::vector<Argument> arguments(const std::vector<std::string>& typed) {
  auto parsed = parse_arguments(typed);
  EXPECT_TRUE(parsed) << format(parsed.error());
  return parsed ? *parsed : std::vector<Argument>{};
}

TEST_F(SettingsTest, PathsThatMayBeWordsCountFromTheFileToo) {
  SettingsPlaces places;
  const auto with = [&](const std::string& text) {
    places.project_file = write("p/mbbench.toml", text);
    const auto settings = read_settings(places, {});
    EXPECT_TRUE(settings) << format(settings.error());
    return settings->config;
  };
  const trainer::Config files = with("moe_router_replay = 'a/routing.bin'\nmodel = './mine'\n");
  EXPECT_EQ(files.parallel.moe_router_replay, folder_ + "/p/a/routing.bin");
  EXPECT_EQ(files.model.name, folder_ + "/p/mine");
  const trainer::Config words = with("moe_router_replay = 'reference'\nmodel = 'mixtral-8x7b'\n");
  EXPECT_EQ(words.parallel.moe_router_replay, "reference");
  EXPECT_EQ(words.model.name, "mixtral-8x7b");
}

TEST_F(SettingsTest, LaterLayersWinAndSourcesSayWhere) {
  SettingsPlaces places;
  places.shipped_file = write("shipped.toml", "lr = 0.1\nseed = 1\n");
  places.user_file = write("user.toml", "[optimizer]\nlr = 0.2\nmin_lr = 0.01\nclip-grad = 2\n");
  places.project_file = write(
      "p/mbbench.toml", "runs_dir = \"out\"\noptimizer.lr = 0.3\ntrain.mbs = 3\n[data]\npath = \"texts/a.txt\"\n");
  places.environment = {{"MBBENCH_LR", "0.4"}, {"MBBENCH_TRAIN_SEQ_LENGTH", "32"}, {"MBBENCH_SUITES_DIR", "mine"}};
  const auto settings = read_settings(places, arguments({"--tp", "2", "lr=0.5"}));
  ASSERT_TRUE(settings) << format(settings.error());
  EXPECT_EQ(settings->config.optimizer.lr, 0.5);
  EXPECT_EQ(settings->config.optimizer.min_lr, 0.01);
  EXPECT_EQ(settings->config.optimizer.clip_grad, 2.0);
  EXPECT_EQ(settings->config.train.seed, 1);
  EXPECT_EQ(settings->config.train.micro_batch_size, 3);
  EXPECT_EQ(settings->config.train.seq_length, 32);
  EXPECT_EQ(settings->config.parallel.tensor_model_parallel_size, 2);
  EXPECT_EQ(settings->config.data.path, folder_ + "/p/texts/a.txt");
  EXPECT_EQ(settings->product.runs_dir, folder_ + "/p/out");
  EXPECT_EQ(settings->product.suites_dir, "mine");
  EXPECT_EQ(describe(settings->sources.at("optimizer.lr")), "argument 'lr=0.5'");
  EXPECT_EQ(describe(settings->sources.at("parallel.tensor_model_parallel_size")), "argument '--tp 2'");
  EXPECT_EQ(describe(settings->sources.at("train.seq_length")), "environment variable MBBENCH_TRAIN_SEQ_LENGTH");
  EXPECT_EQ(describe(settings->sources.at("optimizer.min_lr")), folder_ + "/user.toml:3:10");
  EXPECT_EQ(describe(settings->sources.at("train.seed")), folder_ + "/shipped.toml:2:8");
  EXPECT_EQ(settings->sources.count("train.train_iters"), 0u);
  const std::string text = render_origins_text(*settings);
  EXPECT_NE(text.find("train.micro_batch_size = 3"), std::string::npos) << text;
  EXPECT_NE(text.find("project: " + folder_ + "/p/mbbench.toml:3:13\n"), std::string::npos) << text;
  const std::string json = render_origins_json(*settings);
  EXPECT_NE(
      json.find(
          R"({"key": "train.train_iters", "value": "60", "layer": "default", "place": "", "line": 0, "column": 0})"),
      std::string::npos)
      << json;
}

TEST_F(SettingsTest, PlacesAreFoundUpwardAndUnderTheHome) {
  const std::string project = write("a/mbbench.toml", "");
  const std::string user = write("cfg/mbbench/mbbench.toml", "");
  ASSERT_TRUE(make_dirs(folder_ + "/a/b/c"));
  ::setenv("XDG_CONFIG_HOME", (folder_ + "/cfg").c_str(), 1);
  ::setenv("MBBENCH_TP", "2", 1);
  const SettingsPlaces places = find_places(folder_ + "/a/b/c");
  EXPECT_EQ(places.project_file, project);
  EXPECT_EQ(places.user_file, user);
  EXPECT_EQ(find_places(folder_ + "/cfg").project_file, "");
  const auto settings = read_settings(places, {});
  ::unsetenv("MBBENCH_TP");
  ::setenv("XDG_CONFIG_HOME", (folder_ + "/none").c_str(), 1);
  EXPECT_EQ(find_places(folder_).user_file, "");
  ::unsetenv("XDG_CONFIG_HOME");
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->config.parallel.tensor_model_parallel_size, 2);
}

TEST_F(SettingsTest, HomeIsExpandedInPaths) {
  SettingsPlaces places;
  places.home = "/home/someone";
  places.project_file = write("mbbench.toml", "runs_dir = '~/runs'\n");
  const auto settings = read_settings(places, arguments({"data.path=~/text"}));
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->product.runs_dir, "/home/someone/runs");
  EXPECT_EQ(settings->config.data.path, "/home/someone/text");
}

TEST_F(SettingsTest, FileRefusalsNameThePlace) {
  const auto refused = [&](const std::string& text) {
    SettingsPlaces places;
    places.project_file = write("mbbench.toml", text);
    return refusal(read_settings(places, {}));
  };
  EXPECT_EQ(refused("x = 1\n"),
            "error: DIR/mbbench.toml:1:1: no knob is called 'x'\n  hint: `mbbench knobs` lists them all");
  EXPECT_EQ(refused("\n  run_dir = 'a'\n"),
            "error: DIR/mbbench.toml:2:3: no knob is called 'run_dir'\n  hint: did you mean 'runs_dir'?");
  EXPECT_EQ(refused("[train]\nmicro_batch = 1\n"),
            "error: DIR/mbbench.toml:2:1: no knob is called 'train.micro_batch'\n  hint: did you mean "
            "'train.micro_batch_size'?");
  EXPECT_EQ(
      refused("[parallel]\ntp = '4'\n"),
      "error: DIR/mbbench.toml:2:6: parallel.tensor_model_parallel_size must be an integer, not the string \"4\"");
  EXPECT_EQ(refused("tp = 2\n[parallel]\ntensor_model_parallel_size = 4\n"),
            "error: DIR/mbbench.toml:3:1: parallel.tensor_model_parallel_size is set twice, here as "
            "'parallel.tensor_model_parallel_size' and at 1:1 as 'tp'\n  hint: keep one of them");
  EXPECT_TRUE(refused("tp = \n").starts_with("error: DIR/mbbench.toml:1:6: not TOML: "));
  EXPECT_EQ(refused("seed = 1979-05-27\n"), "error: DIR/mbbench.toml:1:8: a date or time is no value of a knob");
  EXPECT_EQ(refused("lr = inf\n"), "error: DIR/mbbench.toml:1:6: optimizer.lr must be a finite number, not inf");
  EXPECT_EQ(refused("[gate]\nproduct = ['image', \"commit\"]\n"),
            "error: DIR/mbbench.toml:2:12: a list for a knob holds integers, not a string\n  hint: several are one "
            "string with commas between: product = \"image,commit\"");
  EXPECT_EQ(refused("[gate]\nproduct = ['image', 1.5]\n"),
            "error: DIR/mbbench.toml:2:12: a list for a knob holds integers, not a string");
  EXPECT_EQ(refused("lr = { a = 1 }\n"), "error: DIR/mbbench.toml:1:6: optimizer.lr must be a number, not a table");
}

TEST_F(SettingsTest, OtherRefusalsNameVariableAndArgument) {
  SettingsPlaces places;
  places.environment = {{"MBBENCH_TPP", "1"}};
  EXPECT_EQ(refusal(read_settings(places, {})),
            "error: environment variable MBBENCH_TPP: no knob is called 'tpp'\n  hint: did you mean 'pp' "
            "(parallel.pipeline_model_parallel_size)?");
  EXPECT_EQ(refusal(read_settings({}, {{"tp", "x", "--tp=x"}})),
            "error: argument '--tp=x': parallel.tensor_model_parallel_size must be an integer (GPUs), not 'x'");
  places.environment = {};
  places.user_file = folder_ + "/none.toml";
  EXPECT_EQ(refusal(read_settings(places, {})),
            "error: reading DIR/none.toml: No such file or directory\n  hint: check the path");
}

TEST_F(SettingsTest, WhatAFileSaysWronglyIsABadFileAndAnythingElseABadArgument) {
  const auto code = [](const auto& result) {
    EXPECT_FALSE(result.has_value());
    return result ? "" : name(result.error().code);
  };
  SettingsPlaces places;
  for (const char* text : {"x = 1\n", "tp = 'two'\n", "tp = -1\n", "[gate]\nmax_silent_nights = 0\n", "tp = \n",
                           "recipe = 'bf17'\n", "tp = 1\n[parallel]\ntp = 1\n"}) {
    places.project_file = write("mbbench.toml", text);
    EXPECT_STREQ(code(read_settings(places, {})), "bad-file") << text;
  }
  places.project_file = "";
  for (const auto& [variable, value] : {std::pair{"MBBENCH_TPP", "1"}, {"MBBENCH_TP", "two"}, {"MBBENCH_TP", "-1"}}) {
    places.environment = {{variable, value}};
    EXPECT_STREQ(code(read_settings(places, {})), "bad-argument") << variable << "=" << value;
  }
  EXPECT_STREQ(code(read_settings({}, {{"tpp", "1", "tpp=1"}})), "bad-argument");
  EXPECT_STREQ(code(read_settings({}, {{"tp", "two", "tp=two"}})), "bad-argument");
  EXPECT_STREQ(code(parse_arguments({"--tpp", "1"})), "bad-argument");
}

TEST_F(SettingsTest, AFactThatIsDeclaredHasAValue) {
  EXPECT_EQ(
      refusal(read_settings({}, {{"gate.facts.image", " ", "gate.facts.image= "}})),
      "error: argument 'gate.facts.image= ': the fact gate.facts.image is empty\n  hint: give its value, or leave it "
      "out");
  SettingsPlaces places;
  places.project_file = write("mbbench.toml", "[gate.facts]\nimage = ''\n");
  const auto written = read_settings(places, {});
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kBadFile);
  EXPECT_TRUE(read_settings(places, {{"gate.facts", "image=v1", "gate.facts=image=v1"}}).has_value());
}

TEST(ProductSettings, ReferencePageIsCurrent) {
  const auto page = read_file(MBB_SOURCE_DIR "/suites/matrix/SETTINGS.md");
  const std::string wanted = render_settings_markdown();
  if (!page || *page != wanted) {
    ASSERT_TRUE(write_file(MBB_BINARY_DIR "/SETTINGS.md", wanted));
  }
  EXPECT_TRUE(page && *page == wanted) << "suites/matrix/SETTINGS.md is not what the records say: copy " MBB_BINARY_DIR
                                          "/SETTINGS.md over it";
}

TEST(Arguments, EverySpelling) {
  const auto parsed = arguments({"--tensor-model-parallel-size", "4", "--pp=2", "mbs=1", "train.seed=-1",
                                 "--sequence-parallel", "--no-use-distributed-optimizer", "--lr", "-1", "--sp", "auto",
                                 "--use_distributed_optimizer", "off", "path=a=b"});
  std::string text;
  for (const Argument& argument : parsed) text += argument.name + "=" + argument.value + " ";
  EXPECT_EQ(
      text,
      "tensor-model-parallel-size=4 pp=2 mbs=1 train.seed=-1 sequence-parallel=true use-distributed-optimizer=false "
      "lr=-1 sp=auto use_distributed_optimizer=off path=a=b ");
  EXPECT_EQ(parsed[0].typed, "--tensor-model-parallel-size 4");
}

TEST(Arguments, Refusals) {
  const auto refused = [](const std::vector<std::string>& typed) { return format(parse_arguments(typed).error()); };
  EXPECT_EQ(refused({"quick"}),
            "error: argument 'quick' sets nothing\n  hint: settings are written name=value or --name value");
  EXPECT_EQ(refused({"=3"}),
            "error: argument '=3' sets nothing\n  hint: settings are written name=value or --name value");
  EXPECT_EQ(refused({"--tp"}), "error: argument '--tp' has no value\n  hint: write --tp VALUE");
  EXPECT_EQ(refused({"--tp", "--pp", "2"}), "error: argument '--tp' has no value\n  hint: write --tp VALUE");
  EXPECT_EQ(
      refused({"--lerning-rate", "1"}),
      "error: argument '--lerning-rate': no knob is called 'lerning-rate'\n  hint: `mbbench knobs` lists them all");
  EXPECT_EQ(refused({"--train-iter", "1"}),
            "error: argument '--train-iter': no knob is called 'train-iter'\n  hint: did you mean 'train_iters' "
            "(train.train_iters)?");
  EXPECT_EQ(refused({"--no-tp"}),
            "error: argument '--no-tp': no knob is called 'no-tp'\n  hint: `mbbench knobs` lists them all");
}

TEST(Arguments, RandomLinesEndInSettingsOrAnError) {
  const char* words[] = {"--tp",      "tp=2",        "--",    "--=", "=",   "--sp",    "--no-sp",   "4",     "-1",
                         "--lr=1e-3", "recipe=bf16", "--no-", "",    "a=b", "--model", "\xff=\x01", "gpus=0"};
  std::mt19937 random(9);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> typed;
    for (size_t n = random() % 5; n > 0; --n) {
      std::string word = words[random() % std::size(words)];
      if (random() % 5 == 0 && !word.empty()) word[random() % word.size()] = static_cast<char>(random());
      typed.push_back(word);
    }
    const auto parsed = parse_arguments(typed);
    if (!parsed) continue;
    const auto settings = read_settings({}, *parsed);
    if (settings) continue;
    EXPECT_EQ(settings.error().what.rfind("argument '", 0), 0u) << settings.error().what;
  }
}

TEST(Settings, ChangedLinesGiveTheConfigurationBack) {
  trainer::Config config;
  EXPECT_EQ(changed_lines(config), "");
  config.parallel.tensor_model_parallel_size = 2;
  config.optimizer.lr = 0.01;
  const std::string lines = changed_lines(config);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  trainer::Config again;
  KnobSources sources;
  ASSERT_TRUE(trainer::knobs().from_lines(again, sources, lines, {Layer::kSuite, "stored", 0, 0}));
  EXPECT_EQ(trainer::knobs().to_lines(again), trainer::knobs().to_lines(config));
}

TEST(Settings, AKnobAtItsDefaultSplitsNoSeries) {
  trainer::Config config;
  KnobSources sources;
  const Source typed{Layer::kCommandLine, "argument"};
  ASSERT_TRUE(trainer::knobs().set_text(config, sources, "tp", "1", typed)) << "its default";
  ASSERT_TRUE(trainer::knobs().set_text(config, sources, "pp", "2", typed));
  ASSERT_TRUE(trainer::knobs().set_text(config, sources, "debug.delay_us", "5", typed)) << "splits none";
  for (const KnobState& state : knob_states(config, sources))
    EXPECT_EQ(splits_series(state), state.knob->key == "parallel.pipeline_model_parallel_size") << state.knob->key;
}

}  // namespace
}  // namespace mbb::suites
