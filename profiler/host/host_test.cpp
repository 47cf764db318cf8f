// The fingerprint of this machine, its class, and what of environment and command line may be stored.
#include <gtest/gtest.h>

#include <algorithm>

#include "profiler/host/captured.h"
#include "profiler/host/fingerprint.h"
#include "profiler/host/gpus.h"

namespace mbb::profiler {
namespace {

std::string value_of(const Fingerprint& fingerprint, const std::string& key) {
  for (const HostFact& fact : fingerprint.facts) {
    if (fact.key == key) return fact.value;
  }
  return "absent";
}

TEST(Fingerprint, KnowsThisMachine) {
  const Fingerprint here = take_fingerprint({{"library.example", "1.2", true}});
  for (const char* key : {"cpu.model", "cpu.online", "cpu.usable", "memory.total_gib", "kernel.release", "os.name",
                          "build.commit", "build.compiler", "library.glibc", "gpu.count"}) {
    EXPECT_NE(value_of(here, key), "absent") << key;
    EXPECT_NE(value_of(here, key), "") << key;
  }
  EXPECT_NE(value_of(here, "cpu.model"), "unknown");
  EXPECT_EQ(value_of(here, "library.example"), "1.2");
  EXPECT_EQ(here.class_hash.size(), 16U);
  EXPECT_EQ(take_fingerprint({{"library.example", "1.2", true}}).class_hash, here.class_hash);
  EXPECT_NE(take_fingerprint({{"library.example", "1.3", true}}).class_hash, here.class_hash);
  EXPECT_EQ(take_fingerprint({{"library.example", "1.2", true}, {"note", "x", false}}).class_hash, here.class_hash);
}

TEST(Fingerprint, ClassIgnoresOrderAndOtherFacts) {
  const HostFact device{"gpu.model", "H100", true};
  const HostFact driver{"gpu.driver", "580", true};
  const HostFact kernel{"kernel.release", "6.1", false};
  const std::string hash = make_fingerprint({device, driver, kernel}).class_hash;
  EXPECT_EQ(make_fingerprint({kernel, driver, device}).class_hash, hash);
  EXPECT_EQ(make_fingerprint({driver, device}).class_hash, hash);
  EXPECT_NE(make_fingerprint({device}).class_hash, hash);
}

TEST(Fingerprint, GpusAreListedOrTheReasonIsGiven) {
  const GpuInventory inventory = list_gpus();
  EXPECT_TRUE(!inventory.gpus.empty() || !inventory.note.empty() || !inventory.driver.empty());
  for (const GpuFacts& gpu : inventory.gpus) EXPECT_FALSE(gpu.model.empty());
}

TEST(Fingerprint, LinksAreCountedByGpu) {
  std::vector<GpuFacts> gpus(3);
  EXPECT_EQ(nvlink_text({}), "");
  EXPECT_EQ(nvlink_text(gpus), "") << "not known";
  for (GpuFacts& gpu : gpus) gpu.nvlinks = 0;
  EXPECT_EQ(nvlink_text(gpus), "none");
  for (GpuFacts& gpu : gpus) gpu.nvlinks = 18;
  EXPECT_EQ(nvlink_text(gpus), "3 x 18 links");
  gpus[1].nvlinks = 17;
  EXPECT_EQ(nvlink_text(gpus), "2 x 18 links, 1 x 17 links");
  gpus[2].nvlinks = -1;
  EXPECT_EQ(nvlink_text(gpus), "");
}

TEST(Fingerprint, FieldsOfTexts) {
  EXPECT_EQ(field_of("a : 1\nmodel name\t: X 1\nmodel name: Y\n", "model name", ':'), "X 1");
  EXPECT_EQ(field_of("PRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME", '='), "Debian 12");
  EXPECT_EQ(field_of("x=\"", "x", '='), "\"");
  EXPECT_EQ(field_of("", "x", '='), "");
  EXPECT_EQ(field_of("x=", "x", '='), "");
}

bool known(std::string_view name) {
  return name == "tp" || name == "tag" || name == "MBBENCH_TP";
}

std::string shown(const std::vector<CapturedValue>& values) {
  std::string text;
  for (const CapturedValue& v : values) text += v.name + "=" + (v.hashed ? "#" : v.value) + " ";
  return text;
}

TEST(Captured, ArgumentsShowOnlyWhatIsKnown) {
  const auto show = [](const std::vector<std::string>& arguments) {
    return shown(capture_arguments(arguments, known));
  };
  EXPECT_EQ(show({"suite", "quickstart", "tp=2", "--tag", "x"}), "=suite =quickstart tp=2 --tag= =x ");
  EXPECT_EQ(show({"--tp=4", "--token=abc", "key=abc"}), "--tp=4 --token=# key=# ");
  EXPECT_EQ(show({"--token", "abc", "word"}), "--token= =# =word ");
  EXPECT_EQ(show({"-pabc", "abc"}), "-p=# =# ");
  EXPECT_EQ(show({"--tag", "https://me:abc@host"}), "--tag= =# ");
  EXPECT_EQ(show({"tp=x://abc"}), "tp=# ");
  EXPECT_EQ(show({"run", "--", "python", "--key=abc", "abc"}), "=run --= =# =# =# ");
  EXPECT_EQ(show({"-", "-5", ""}), "=- =-5 = ");
}

TEST(Captured, EnvironmentShowsOnlyWhatIsListed) {
  const auto values = capture_environment({{"OMP_NUM_THREADS", "2"},
                                           {"MBBENCH_TP", "4"},
                                           {"MBBENCH_TOKEN", "abc"},
                                           {"AWS_SECRET_ACCESS_KEY", "abc"},
                                           {"NCCL_DEBUG", "http://u:p@h"}},
                                          known);
  EXPECT_EQ(shown(values), "AWS_SECRET_ACCESS_KEY=# MBBENCH_TOKEN=# MBBENCH_TP=4 NCCL_DEBUG=# OMP_NUM_THREADS=2 ");
  EXPECT_EQ(short_hash("abc").size(), 6U);
  EXPECT_NE(short_hash("abc"), short_hash("abd"));
}

}  // namespace
}  // namespace mbb::profiler
