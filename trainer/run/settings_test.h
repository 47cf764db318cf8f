// A configuration written as a user writes it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trainer/run/knobs.h"

namespace mbb::trainer {

using Settings = std::vector<std::string>;  // "key=value"

inline Config config_of(const Settings& settings) {
  Config config;
  KnobSources sources;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    const Status set = knobs().set_text(config, sources, setting.substr(0, equals), setting.substr(equals + 1),
                                        {Layer::kCommandLine, "test", 0, 0});
    EXPECT_TRUE(set.has_value()) << setting << ": " << (set ? "" : set.error().what);
  }
  return config;
}

}  // namespace mbb::trainer
