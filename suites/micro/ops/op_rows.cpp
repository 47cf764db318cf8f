// Builds a configuration's program and reads its ops off the walk.
#include "suites/micro/ops/op_rows.h"

#include <algorithm>
#include <set>

#include "trainer/ops/op_kind.h"
#include "trainer/ops/table.h"
#include "trainer/program/walk.h"
#include "trainer/run/knobs.h"

namespace mbb::suites {

using namespace trainer;  // NOLINT: this file speaks of nothing else

namespace {

// What an op reads twice whatever its kernel: no element can be written before the largest is known.
double read_again(const OpView& op) {
  // Scaled moments: gradient and moments; of a master with a scale, it too.
  if (const auto* adam = std::get_if<AdamAttrs>(&op.op.attrs); adam != nullptr && adam->scaled) {
    const auto size = [&](size_t i) { return static_cast<double>(size_of(op.in(i).dtype)); };
    const double master = adam->master == MasterForm::kScaled ? size(6) : 0.0;
    return static_cast<double>(op.in(2).shape.elements()) * (size(0) + size(2) + size(3) + master);
  }
  // Blocks under a scale of the whole copy.
  if (const auto* blocks = std::get_if<QuantizeBlocksAttrs>(&op.op.attrs); blocks != nullptr)
    return blocks->scale == BlockScale::kE4M3 ? static_cast<double>(op.in(0).bytes()) : 0.0;
  static const std::set<std::string_view> kTensorwise{"quantize", "rmsnorm_quantize", "swiglu_quantize",
                                                      "swiglu_grad_quantize"};
  if (!kTensorwise.contains(op.op.kind->name)) return 0.0;
  double bytes = 0.0;
  for (size_t i = 0; i < op.op.in.size(); ++i) bytes += static_cast<double>(op.in(i).bytes());
  return bytes;
}

double largest_touched(const OpView& op) {
  int64_t bytes = 0;
  for (size_t i = 0; i < op.op.in.size(); ++i) bytes = std::max(bytes, op.in(i).bytes());
  for (size_t i = 0; i < op.op.out.size(); ++i) bytes = std::max(bytes, op.out(i).bytes());
  return std::min(static_cast<double>(bytes), op_bytes(op));
}

Link link_of(const OpView& op) {
  if (op.op.kind != &kCopy) return Link::kNone;
  if (op.out(0).space == Space::kHost) return Link::kToHost;
  return op.in(0).space == Space::kHost ? Link::kFromHost : Link::kNone;
}

}  // namespace

Result<BuiltCase> build_case(const std::vector<std::string>& settings) {
  Config config;
  config.host.device = Device::kCuda;
  KnobSources sources;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) return fail(ErrorCode::kBadArgument, setting + ": not key=value");
    MB_TRY(knobs().set_text(config, sources, setting.substr(0, equals), setting.substr(equals + 1),
                            {Layer::kCommandLine, "mbbench micro", 0, 0}));
  }
  config.train.global_batch_size = config.train.micro_batch_size;
  BuiltCase built;
  MB_ASSIGN(built.layout, resolve(config));
  MB_ASSIGN(built.programs, build_programs(built.layout));
  const Program& program = built.programs.programs[0];
  std::set<std::string> known;
  size_t position = 0;
  walk(program, [&](int, const Call&, int, const Op& op) {
    const OpView view{program, op};
    const std::string key = cost_key(view);
    if (known.insert(key).second)
      built.rows.push_back({key, std::string(op.kind->name), position, op_flops(view), op_bytes(view),
                            largest_touched(view), read_again(view), link_of(view)});
    ++position;
  });
  return built;
}

}  // namespace mbb::suites
