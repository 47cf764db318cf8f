// Baselines are appended, found, ended and refused; damage is told by line.
#include "baselines/pins/pins.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace mbb::baselines {
namespace {

class Pins : public testing::Test {
 protected:
  void SetUp() override {
    file_ =
        (std::filesystem::path(testing::TempDir()) /
         ("mbbench_pins_" + std::to_string(getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name()))
            .string();
    std::filesystem::remove(file_);
  }
  void TearDown() override { std::filesystem::remove(file_); }
  static Pin pin(const std::string& id) {
    Pin p;
    p.id = id;
    p.identity_hash = "i", p.class_hash = "c", p.metric = "step_time", p.cell = "one-rank", p.unit = "ns";
    p.nights = {{1.5, 2.5}, {3}};
    p.runs = {"r-1", "r-2"};
    p.author = "ada", p.reason = "first";
    return p;
  }
  std::string file_;
};

TEST_F(Pins, AcceptedLinesComeBackAndTheNewestStandingOneIsFound) {
  EXPECT_TRUE(read_pins(file_).value().empty()) << "no file is no pin";
  ASSERT_TRUE(append_pin(file_, pin("b-1")));
  ASSERT_TRUE(append_pin(file_, pin("b-2")));
  auto pins = read_pins(file_).value();
  ASSERT_EQ(pins.size(), 2U);
  EXPECT_EQ(pins[0].nights, pin("b-1").nights);
  EXPECT_EQ(find_pin(pins, "i", "c", "e", "step_time", 0)->id, "b-2");
  EXPECT_EQ(find_pin(pins, "i", "other class", "e", "step_time", 0), nullptr);
  EXPECT_FALSE(stands(pins, pins[0], 0)) << "superseded";
  EXPECT_TRUE(stands(pins, pins[1], 0));
  ASSERT_TRUE(end_pin(file_, "b-2", "ada", "a wrong night"));
  pins = read_pins(file_).value();
  EXPECT_EQ(find_pin(pins, "i", "c", "e", "step_time", 0)->id, "b-1");
  EXPECT_EQ(pins[1].ended_by, "ada: a wrong night");
  EXPECT_FALSE(end_pin(file_, "b-2", "ada", "again"));
  EXPECT_EQ(end_pin(file_, "b-9", "ada", "none").error().code, ErrorCode::kNotFound);
}

TEST_F(Pins, AnEpochHasItsOwn) {
  Pin old = pin("b-1"), now = pin("b-2");
  now.epoch = "e2", now.product = "p", now.configuration = "k", now.suite = "s";
  ASSERT_TRUE(append_pin(file_, old));
  ASSERT_TRUE(append_pin(file_, now));
  const auto pins = read_pins(file_).value();
  EXPECT_EQ(pins[1].epoch + pins[1].product + pins[1].configuration + pins[1].suite, "e2pks");
  EXPECT_EQ(find_pin(pins, "i", "c", "e2", "step_time", 0)->id, "b-2");
  EXPECT_EQ(find_pin(pins, "i", "c", "e3", "step_time", 0)->id, "b-1") << "a line older than epochs stands in any";
  EXPECT_EQ(find_any_pin(pins, "i", "step_time")->id, "b-2");
  EXPECT_EQ(find_any_pin(pins, "i", "peak_memory"), nullptr);
}

TEST_F(Pins, LinesOlderThanEpochsAreRead) {
  std::ofstream(file_) << R"({"accept":"b-1","cell":"one","model":"m","metric":"step_time","unit":"ns","identity":"i",)"
                       << R"("class":"c","nights":[[1.0]],"runs":["r"],"build":"b","author":"ada","reason":"x",)"
                       << R"("accepted_unix_ns":1,"expires_unix_ns":0})"
                       << "\n";
  const auto pins = read_pins(file_);
  ASSERT_TRUE(pins.has_value()) << format(pins.error());
  EXPECT_EQ(pins->front().epoch, "");
}

TEST_F(Pins, ALastLineWithoutAnEndIsNoTrap) {
  ASSERT_TRUE(append_pin(file_, pin("b-1")));
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  ASSERT_TRUE(append_pin(file_, pin("b-2")));
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  ASSERT_TRUE(end_pin(file_, "b-1", "ada", "a wrong night"));
  const auto pins = read_pins(file_);
  ASSERT_TRUE(pins.has_value()) << format(pins.error());
  ASSERT_EQ(pins->size(), 2U);
  EXPECT_EQ(pins->front().ended_by, "ada: a wrong night");
}

TEST_F(Pins, AllAreAppendedOrNone) {
  Pin nameless = pin("b-2");
  nameless.author.clear();
  EXPECT_FALSE(append_pins(file_, {pin("b-1"), nameless}));
  EXPECT_TRUE(read_pins(file_).value().empty());
  std::ofstream(file_) << "{\"accept\": 3}\n";
  const auto before = std::filesystem::file_size(file_);
  EXPECT_FALSE(append_pins(file_, {pin("b-1")})) << "a damaged file gets no further lines";
  EXPECT_EQ(std::filesystem::file_size(file_), before);
}

TEST_F(Pins, TheNewestBaselineSaysHowManyStepsAreDue) {
  Pin old = pin("b-1"), now = pin("b-2");
  old.steps = 40, now.steps = 20;
  ASSERT_TRUE(append_pins(file_, {old, now}));
  EXPECT_EQ(steps_due(read_pins(file_).value(), "i", "c"), 20);
  EXPECT_EQ(steps_due(read_pins(file_).value(), "i", "other class"), 0);
  ASSERT_TRUE(end_pin(file_, "b-2", "ada", "too short"));
  EXPECT_EQ(steps_due(read_pins(file_).value(), "i", "c"), 40);
}

TEST_F(Pins, ExpiredOnesDoNotStand) {
  Pin p = pin("b-1");
  p.expires_unix_ns = 100;
  ASSERT_TRUE(append_pin(file_, p));
  const auto pins = read_pins(file_).value();
  EXPECT_NE(find_pin(pins, "i", "c", "e", "step_time", 99), nullptr);
  EXPECT_EQ(find_pin(pins, "i", "c", "e", "step_time", 100), nullptr);
}

TEST_F(Pins, NamelessOrEmptyOnesAreRefusedAndDamageIsToldByLine) {
  Pin p = pin("b-1");
  for (const char* reason : {"", " \t"}) {
    p.reason = reason;
    EXPECT_FALSE(append_pin(file_, p));
  }
  p = pin("b-1");
  p.nights = {{}};
  EXPECT_FALSE(append_pin(file_, p));
  ASSERT_TRUE(append_pin(file_, pin("b-1")));
  std::ofstream(file_, std::ios::app) << "{\"accept\": 3}\n";
  const auto bad = read_pins(file_);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().what.find(":2: no baseline line"), std::string::npos) << bad.error().what;
}

TEST_F(Pins, ALineWithoutALaunchIsNoBaseline) {
  ASSERT_TRUE(append_pin(file_, pin("b-1")));
  std::ostringstream text;
  text << std::ifstream(file_).rdbuf();
  const std::string whole = text.str();
  const size_t at = whole.find("\"nights\":["), end = whole.find("]]", at) + 2;
  ASSERT_NE(at, std::string::npos) << whole;
  for (const char* nights : {"[]", "[[],[]]"}) {
    std::ofstream(file_) << whole.substr(0, at) << "\"nights\":" << nights << whole.substr(end);
    const auto bad = read_pins(file_);
    ASSERT_FALSE(bad) << nights;
    EXPECT_NE(bad.error().what.find(":1: no baseline line: 'b-1' has no launch"), std::string::npos)
        << bad.error().what;
  }
}

}  // namespace
}  // namespace mbb::baselines
