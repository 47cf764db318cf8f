// CUDA functions of what several ranks' programs hold: columns and runs moved, parts merged and added, products of
// blocks of rows, FP8 messages.
#include <algorithm>
#include <functional>
#include <vector>

#include "trainer/execute/cuda/op_call.h"
#include "trainer/ops/cuda/part_kernels.h"
#include "trainer/ops/cuda/status.h"

namespace mbb::trainer::cuda {
namespace {

size_t bytes(const Operand& operand, int64_t elements) {
  return bytes_of(operand.tensor->dtype, static_cast<size_t>(elements));
}

std::byte* at(const Operand& operand, int64_t element) {
  return operand.as<std::byte>() + bytes(operand, element);
}

// `rows` rows of `cols` columns from one matrix, whose rows have from_cols columns, to another.
struct Block {
  int64_t rows, cols;
};
Status copy_block(const OpCall& call, Block block, const Operand& from, int64_t first, const Operand& to,
                  int64_t to_first) {
  return ok(cudaMemcpy2DAsync(at(to, to_first), bytes(to, to.shape().cols()), at(from, first),
                              bytes(from, from.shape().cols()), bytes(from, block.cols),
                              static_cast<size_t>(block.rows), cudaMemcpyDeviceToDevice, call.device.stream()),
            "moving columns");
}

// Each piece of each part's columns, between [n, columns] (`whole`) and [pieces·n, columns / pieces] (`blocks`).
Status copy_pieces(const OpCall& call, const Operand& whole, const Operand& blocks, bool to_blocks) {
  const auto& a = call.attrs<ColumnAttrs>();
  const int64_t rows = whole.shape().rows(), narrow = blocks.shape().cols();
  for (int64_t piece = 0; piece < a.pieces; ++piece) {
    int64_t first = 0;
    for (const int64_t part : a.parts) {
      const Block block{rows, part / a.pieces};
      const int64_t in_whole = first + piece * block.cols, in_blocks = piece * rows * narrow + first / a.pieces;
      MB_TRY(to_blocks ? copy_block(call, block, whole, in_whole, blocks, in_blocks)
                       : copy_block(call, block, blocks, in_blocks, whole, in_whole));
      first += part;
    }
  }
  return {};
}

}  // namespace

Status split_columns_op(const OpCall& call) {
  int64_t first = 0;
  for (const Operand& part : call.out) {
    MB_TRY(copy_block(call, {part.shape().rows(), part.shape().cols()}, call.in[0], first, part, 0));
    first += part.shape().cols();
  }
  return {};
}

Status join_columns_op(const OpCall& call) {
  int64_t first = 0;
  for (const Operand& part : call.in) {
    MB_TRY(copy_block(call, {part.shape().rows(), part.shape().cols()}, part, 0, call.out[0], first));
    first += part.shape().cols();
  }
  return {};
}

Status columns_to_rows_op(const OpCall& call) {
  return copy_pieces(call, call.in[0], call.out[0], true);
}

Status rows_to_columns_op(const OpCall& call) {
  return copy_pieces(call, call.out[0], call.in[0], false);
}

Status reorder_runs_op(const OpCall& call) {
  const auto& a = call.attrs<RunAttrs>();
  const size_t runs = a.ring > 0 ? static_cast<size_t>(a.ring) : a.order.size();
  const size_t run_bytes = static_cast<size_t>(call.out[0].tensor->bytes()) / runs;
  const size_t each = runs / call.in.size();
  for (size_t i = 0; i < runs; ++i) {
    const size_t from =
        a.ring > 0 ? (static_cast<size_t>(call.coordinates.tp) + runs - i) % runs : static_cast<size_t>(a.order[i]);
    MB_TRY(ok(cudaMemcpyAsync(call.out[0].as<std::byte>() + i * run_bytes,
                              call.in[from / each].as<const std::byte>() + from % each * run_bytes, run_bytes,
                              cudaMemcpyDeviceToDevice, call.device.stream()),
              "putting runs in order"));
  }
  return {};
}

Status merge_attention_op(const OpCall& call) {
  const auto& a = call.attrs<PartAttrs>();
  std::vector<RowPart> parts;
  for (size_t i = 0; i < a.first_rows.size(); ++i)
    parts.push_back(
        {call.in[2 * i].data, call.in[2 * i + 1].as<const float>(), a.first_rows[i], call.in[2 * i].shape()[0]});
  Merge m;
  MB_ASSIGN(m.element, element_of(*call.out[0].tensor));
  m.rows = a.rows, m.batch = call.in[1].shape()[0], m.heads = call.in[1].shape()[1];
  m.value_dim = call.in[0].shape().cols() / m.heads;
  if (a.sinks) m.sinks = at(call.in.back(), a.first_head);
  return merge_attention(m, parts, call.out[0].data, call.out[1].as<float>(), call.device.launch());
}

Status add_parts_op(const OpCall& call) {
  const auto& a = call.attrs<PartAttrs>();
  std::vector<RowPart> parts;
  for (size_t i = 0; i < call.in.size(); ++i)
    parts.push_back({call.in[i].data, nullptr, a.first_rows[i], call.in[i].shape()[0]});
  MB_ASSIGN(const Element element, element_of(*call.out[0].tensor));
  return add_parts(element, a.rows, call.out[0].elements() / a.rows, parts, call.out[0].data, call.device.launch());
}

Status each_row_block(const OpCall& call, const RowBlocks& part,
                      const std::function<Status(int64_t, int64_t)>& product) {
  for (int64_t block = 0; block < part.blocks; ++block) {
    const int64_t whole = part.begin(block, call.coordinates.tp), own = block * part.rows;
    MB_TRY(part.of_result ? product(own, whole) : product(whole, own));
  }
  return {};
}

namespace {

Status each_block(const OpCall& call, const std::function<Status(const GemmProblem&, const GemmBuffers&)>& product) {
  const auto& a = call.attrs<GemmRowsAttrs>();
  const Shape& right = call.in[1].shape();
  GemmProblem p;
  p.m = a.part.rows;
  p.k = call.in[0].shape().cols();
  p.n = call.out[0].shape().cols();
  p.b_transposed = a.gemm.trans_b;
  p.sm_target = call.product_sms(a.gemm.sm_margin);
  MB_ASSIGN(p.a, element_of(*call.in[0].tensor));
  MB_ASSIGN(p.b, element_of(*call.in[1].tensor));
  MB_ASSIGN(p.d, element_of(*call.out[0].tensor));
  if (p.n != (p.b_transposed ? right.rows() : right.cols()))
    return fail(ErrorCode::kBadArgument, "CUDA: " + call.op.path + ": " + right.str() + " gives no such columns");
  return each_row_block(call, a.part, [&](int64_t a_row, int64_t result_row) {
    GemmBuffers g;
    g.a = at(call.in[0], a_row * p.k);
    g.b = call.in[1].data;
    g.d = at(call.out[0], result_row * p.n);
    g.workspace = call.device.gemm_workspace();
    p.alignment = gemm_alignment(g);
    return product(p, g);
  });
}

}  // namespace

Status gemm_rows_op(const OpCall& call) {
  return each_block(call, [&](const GemmProblem& problem, const GemmBuffers& buffers) {
    return call.device.gemm().run(problem, buffers, call.device.stream());
  });
}

Status tune_gemm_rows_op(const OpCall& call, const TuneEffort& effort) {
  return each_block(call, [&](const GemmProblem& problem, const GemmBuffers& buffers) {
    return call.device.tune(problem, buffers, effort);
  });
}

Status pack_fp8_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.in[0].tensor));
  MB_ASSIGN(void* const amax, call.device.scratch(sizeof(float)));
  return pack_fp8(element, call.in[0].data, call.in[0].elements(), call.out[0].as<uint8_t>(), static_cast<float*>(amax),
                  call.device.launch());
}

Status unpack_fp8_op(const OpCall& call) {
  MB_ASSIGN(const Element element, element_of(*call.out[0].tensor));
  return unpack_fp8(element, call.in[0].as<const uint8_t>(), call.out[0].elements(), call.out[0].data,
                    call.device.launch());
}

}  // namespace mbb::trainer::cuda
