// Columns copied row by row on the CPU.
#include <cstring>

#include "trainer/ops/cpu/functions.h"

namespace mbb::trainer {
namespace {

// Moves rows of `part` from or to the columns of `whole` that begin at `first`.
void copy_columns(const CpuOperand& whole, const CpuOperand& part, int64_t first, bool join) {
  const DType dtype = whole.tensor->dtype;
  const int64_t width = part.tensor->shape.cols();
  for (int64_t row = 0; row < part.tensor->shape.rows(); ++row) {
    auto* in_whole = static_cast<std::byte*>(whole.data) +
                     bytes_of(dtype, static_cast<size_t>(row * whole.tensor->shape.cols() + first));
    auto* in_part = static_cast<std::byte*>(part.data) + bytes_of(dtype, static_cast<size_t>(row * width));
    std::memcpy(join ? in_whole : in_part, join ? in_part : in_whole, bytes_of(dtype, static_cast<size_t>(width)));
  }
}

// Copies each piece of each row's parts between [n, columns] (`whole`) and [pieces·n, columns / pieces] (`blocks`).
void copy_pieces(const ColumnAttrs& a, const CpuOperand& whole, const CpuOperand& blocks, bool to_blocks) {
  const DType dtype = whole.tensor->dtype;
  const int64_t columns = whole.tensor->shape.cols();
  const int64_t narrow = blocks.tensor->shape.cols();
  const int64_t rows = whole.tensor->shape.rows();
  const auto at = [&](const CpuOperand& of, int64_t element) {
    return static_cast<std::byte*>(of.data) + bytes_of(dtype, static_cast<size_t>(element));
  };
  for (int64_t piece = 0; piece < a.pieces; ++piece) {
    for (int64_t row = 0; row < rows; ++row) {
      int64_t part_first = 0;
      for (int64_t part : a.parts) {
        const int64_t count = part / a.pieces;
        auto* in_whole = at(whole, row * columns + part_first + piece * count);
        auto* in_blocks = at(blocks, (piece * rows + row) * narrow + part_first / a.pieces);
        std::memcpy(to_blocks ? in_blocks : in_whole, to_blocks ? in_whole : in_blocks,
                    bytes_of(dtype, static_cast<size_t>(count)));
        part_first += part;
      }
    }
  }
}

}  // namespace

Status cpu_columns_to_rows(const CpuCall& call) {
  copy_pieces(call.attrs<ColumnAttrs>(), call.in[0], call.out[0], true);
  return {};
}

Status cpu_rows_to_columns(const CpuCall& call) {
  copy_pieces(call.attrs<ColumnAttrs>(), call.out[0], call.in[0], false);
  return {};
}

Status cpu_reorder_runs(const CpuCall& call) {
  const auto& a = call.attrs<RunAttrs>();
  const size_t runs = a.ring > 0 ? static_cast<size_t>(a.ring) : a.order.size();
  const size_t bytes = static_cast<size_t>(call.out[0].tensor->bytes()) / runs;
  const size_t each = runs / call.in.size();
  for (size_t i = 0; i < runs; ++i) {
    const size_t from = a.ring > 0 ? (static_cast<size_t>(call.rank.coordinates.tp) + runs - i) % runs
                                   : static_cast<size_t>(a.order[i]);
    std::memcpy(static_cast<std::byte*>(call.out[0].data) + i * bytes,
                static_cast<const std::byte*>(call.in[from / each].data) + from % each * bytes, bytes);
  }
  return {};
}

Status cpu_split_columns(const CpuCall& call) {
  int64_t first = 0;
  for (const CpuOperand& part : call.out) {
    copy_columns(call.in[0], part, first, false);
    first += part.tensor->shape.cols();
  }
  return {};
}

Status cpu_join_columns(const CpuCall& call) {
  int64_t first = 0;
  for (const CpuOperand& part : call.in) {
    copy_columns(call.out[0], part, first, true);
    first += part.tensor->shape.cols();
  }
  return {};
}

}  // namespace mbb::trainer
