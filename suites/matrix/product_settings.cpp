// Records of the product's settings.
#include "suites/matrix/product_settings.h"

namespace mbb::suites {

const KnobTable& product_settings() {
  static const KnobTable table(
      {
          {.key = "runs_dir",
           .field = field(&ProductSettings::runs_dir),
           .doc = "Folder of the run bundles and the store; made when missing.",
           .path = true,
           .identity = false},
          {.key = "suites_dir",
           .field = field(&ProductSettings::suites_dir),
           .doc = "Folder of your own suite files, found by name before the shipped ones; empty = none.",
           .path = true,
           .identity = false},
      },
      ProductSettings{});
  return table;
}

}  // namespace mbb::suites
