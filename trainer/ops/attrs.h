// Static parameters of ops, one struct a family. An op carries exactly one of them; passes and executors read it by
// type.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "trainer/program/dtype.h"
#include "trainer/program/mesh.h"
#include "trainer/program/positions.h"
#include "trainer/program/shape.h"

namespace mbb::trainer {

struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};

// C (+)= op(A)·op(B) over matrices [rows, cols] (leading dimensions folded into rows).
struct GemmAttrs {
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;  // beta 1
  bool out_f32 = false;     // router logits
  int sm_margin = 0;        // SMs left to a collective that runs beside it
  bool operator==(const GemmAttrs&) const = default;
};

// Some rows of a product: those of A (whose result is whole) or of the result (whose A is whole) are `blocks` blocks of
// `rows` rows, from row `first` of each stride. In a ring of `ring` tensor-parallel ranks it is one block, of stride
// (TP coordinate − step) mod ring.
struct RowBlocks {
  bool of_result = false;
  int64_t whole_rows = 0;  // of the side that has more
  int64_t blocks = 1;
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t first = 0;
  int ring = 0;
  int step = 0;
  bool operator==(const RowBlocks&) const = default;

  // The row of the whole side where a block begins.
  int64_t begin(int64_t block, int tp_coordinate) const {
    const int64_t at = ring > 0 ? ((tp_coordinate - step) % ring + ring) % ring : block;
    return at * stride + first;
  }
};

struct GemmRowsAttrs {
  GemmAttrs gemm;
  RowBlocks part;
  bool operator==(const GemmRowsAttrs&) const = default;
};

// A message of `shape` in `dtype` as FP8 bytes with its scale behind them, and back.
struct PackAttrs {
  Shape shape;
  DType dtype = DType::kF32;
  bool operator==(const PackAttrs&) const = default;
};

// D = A·Bᵀ (+ D) of tensorwise FP8 operands.
struct ScaledGemmAttrs {
  bool accumulate = false;
  bool fast = false;  // accumulate in the tensor core's own width
  DType out = DType::kBf16;
  bool operator==(const ScaledGemmAttrs&) const = default;
};

struct ScaledRowsAttrs {
  ScaledGemmAttrs gemm;
  int sm_margin = 0;  // SMs left to a collective that runs beside it
  RowBlocks part;
  bool operator==(const ScaledRowsAttrs&) const = default;
};

// Elements of a token's row that share a scale on the way to its experts.
inline constexpr int64_t kTokenBlock = 128;

struct QuantizeAttrs {
  DType to = DType::kE4M3;
  bool operator==(const QuantizeAttrs&) const = default;
};

// How the inverse scale of a block is kept: fp32 of any value, fp32 power of two, a power of two as E8M0 exponent
// rounded up, or E4M3 under an fp32 inverse scale of the whole tensor.
enum class BlockScale : uint8_t { kF32, kPowerOfTwo, kE8M0, kE4M3 };
const char* name(BlockScale scale);

// Blocks are 1 x block along the inner dimension, or block x block when square.
struct QuantizeBlocksAttrs {
  DType to = DType::kE4M3;
  BlockScale scale = BlockScale::kPowerOfTwo;
  int block = 128;
  bool square = false;
  int64_t stack = 1;    // matrices of equal rows, one below the other, each with blocks of its own
  bool rotate = false;  // the transposed copy is multiplied by a random Hadamard matrix of 16 along its inner dimension
  int64_t rotate_signs = 0;  // whose diagonal of signs is these 16 bits
  bool stochastic = false;   // rounding; the stream is rng_stream(seed, path)
  int64_t stream = 0;
  bool operator==(const QuantizeBlocksAttrs&) const = default;
};

// D = A·Bᵀ (+ D) of operands with a scale a block.
struct GemmBlocksAttrs {
  bool accumulate = false;
  int block = 128;
  bool a_square = false;
  bool b_square = false;
  DType out = DType::kBf16;
  bool operator==(const GemmBlocksAttrs&) const = default;
};

struct AmaxAttrs {
  bool accumulate = false;
  bool operator==(const AmaxAttrs&) const = default;
};

// Delayed scaling: scale = maximum(to) / amax / 2^margin, amax the largest of the history or the newest.
struct ScaleUpdateAttrs {
  DType to = DType::kE4M3;
  int64_t margin = 0;
  bool most_recent = false;
  bool operator==(const ScaleUpdateAttrs&) const = default;
};

struct NormAttrs {
  float eps = 1e-5F;
  bool accumulate = false;  // backward: weight gradient added to what is there
  bool one_plus = false;    // LayerNorm: multiplies by 1 + w
  int sm_margin = 0;        // SMs left to communication
  bool operator==(const NormAttrs&) const = default;
};

// Vocabulary rows [coordinate·rows, ...) of the table are local; tokens outside contribute zeros (vocab parallel over
// TP).
struct EmbeddingAttrs {
  bool accumulate = false;
  bool operator==(const EmbeddingAttrs&) const = default;
};

// RMS norm of every query and key head of packed qkv, over head_dim.
struct QkNormAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  float eps = 1e-6F;
  bool accumulate = false;
  bool operator==(const QkNormAttrs&) const = default;
};

// Bias b enters as scale · b; a scale below 1 splits a bias over ranks whose outputs are summed.
struct BiasAttrs {
  bool accumulate = false;
  float scale = 1.0F;
  bool operator==(const BiasAttrs&) const = default;
};

enum class Pointwise : uint8_t { kGelu, kGeluTanh, kRelu, kSquaredRelu, kGeglu, kClampedSwiglu };
const char* name(Pointwise function);
// Gated functions read packed [gate | up] and give half its width.
constexpr bool is_gated(Pointwise function) {
  return function == Pointwise::kGeglu || function == Pointwise::kClampedSwiglu;
}

// Clamped SwiGLU: g = min(gate, limit), u = clamp(up, ±limit), g · sigmoid(alpha · g) · (u + 1).
struct ActivationAttrs {
  Pointwise function = Pointwise::kGelu;
  float limit = 7.0F;
  float alpha = 1.702F;
  bool operator==(const ActivationAttrs&) const = default;
};

// y = forward · x, dx = backward · dy.
struct ScaleByAttrs {
  double forward = 1.0;
  double backward = 1.0;
  bool operator==(const ScaleByAttrs&) const = default;
};

// x [s, b, ..]: row r is row TP coordinate · s + r where the sequence is sharded over TP; `positions` says where rows
// lie. Packed: the last operand says where sequences begin (i32 [capacity + 1], ascending; those behind the last one
// are empty and begin at the number of tokens), b is 1, and positions count from the start of a token's own sequence.
struct PositionAttrs {
  bool sequence_sharded = false;
  bool accumulate = false;
  bool packed = false;
  Positions positions = {};
  bool operator==(const PositionAttrs&) const = default;
};

// Keeps an element with probability 1 − probability, times 1 / (1 − probability). The stream is rng_stream(seed, path);
// the step record gives the step, `samples` the global sample, the position in the unsharded sequence the element.
struct DropoutAttrs {
  double probability = 0.0;
  int64_t stream = 0;
  bool sequence_sharded = false;
  Positions positions = {};  // as of PositionAttrs
  bool packed = false;       // likewise, where a rank's rows of a pack are not in its order
  bool operator==(const DropoutAttrs&) const = default;
};

// What computes attention: the best there is, our flash kernel, cuDNN's, or ops of its own for scores, softmax and
// context (unfused.cpp). On the CPU the first three are one function.
enum class AttentionBackend : uint8_t { kAuto, kFlash, kFused, kUnfused };
const char* name(AttentionBackend backend);

// Heads are local. Packed qkv: last dimension [heads·d | kv_heads·d | kv_heads·dv]. Operands after qkv, in this order:
// sinks [heads] or the relative bias table [heads, buckets] (weights), samples and step record (dropout).
struct AttentionAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  bool causal = true;
  float scale = 1.0F;
  int v_head_dim = 0;        // dv; 0: head_dim
  int window = 0;            // a token sees itself and window − 1 before it; 0: all before it
  bool sinks = false;        // one more logit a head in the softmax's denominator
  int relative_buckets = 0;  // > 0: a bias by bucket of (key − query), T5's
  int relative_max_distance = 128;
  double dropout = 0.0;  // of the softmax's weights
  int64_t dropout_stream = 0;
  bool accumulate = false;  // backward: gradient of sinks or table added to what is there
  // A token sees its own sequence only (PositionAttrs). Starts come last; two of them where queries and keys are packs
  // of their own and sequence i sees sequence i (cross attention that is not causal).
  bool packed = false;
  AttentionBackend backend = AttentionBackend::kAuto;
  // Context parallelism: where query and key rows lie. The backward finds its queries' log-sum-exp from row first_query
  // on; heads are [first_head, first_head + heads) of the all_heads of this TP rank (0: they are all).
  Positions queries = {};
  Positions keys = {};
  int64_t first_query = 0;
  int first_head = 0;
  int all_heads = 0;
  bool operator==(const AttentionAttrs&) const = default;

  int value_dim() const { return v_head_dim == 0 ? head_dim : v_head_dim; }
  bool has_weight() const { return sinks || relative_buckets > 0; }
  int tp_heads() const { return all_heads == 0 ? heads : all_heads; }
};

// How elements turn with their position: in pairs (i, i + dim/2), or (2i, 2i + 1) when interleaved.
struct Rotation {
  double theta = 10000.0;  // frequency of pair i: theta^(−2i/dim), unless `frequencies` lists them
  int dim = 0;             // how many elements turn, the first ones of a part; 0: the whole part
  bool interleaved = false;
  std::vector<double> frequencies = {};  // by pair, for scaled frequencies
  double factor = 1.0;                   // multiplies cos and sin
  bool packed = false;                   // as in PositionAttrs
  Positions positions = {};
  bool operator==(const Rotation&) const = default;

  int turned(int part) const { return dim == 0 ? part : dim; }
};

// Rotary embedding of the first heads + kv_heads heads of packed qkv, from element rotary_offset of a head on.
struct RopeAttrs {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  Rotation rotation = {};
  bool inverse = false;  // backward: rotate the other way
  int rotary_offset = 0;
  int v_head_dim = 0;  // 0: head_dim
  int first_head = 0;  // turns `turned_heads` heads from here on; 0: all to the last key
  int turned_heads = 0;
  bool operator==(const RopeAttrs&) const = default;

  int turned() const { return rotation.turned(head_dim); }
  int end_head() const { return turned_heads == 0 ? heads + kv_heads : first_head + turned_heads; }
  int value_dim() const { return v_head_dim == 0 ? head_dim : v_head_dim; }
};

// Multi-head latent attention's assembly of packed qkv: queries [heads·(nope + rope)], one rotary key [rope] that all
// heads share, and per head its key part and value [heads·(nope + value)]. When it turns, the last `rope` elements of
// every query and key head do so on the way.
struct LatentAttrs {
  int heads = 1;
  int nope = 64;
  int rope = 32;
  int value = 64;
  bool turns = false;
  Rotation rotation = {};
  bool operator==(const LatentAttrs&) const = default;

  int turned() const { return turns ? rotation.turned(rope) : 0; }
  bool packed() const { return turns && rotation.packed; }
};

// Matrix rows [.., sum of parts] taken apart into, or joined from, matrices of `parts` columns.
// With `pieces`, each part is cut into as many and piece by piece becomes a block of rows [pieces · rows, .., columns /
// pieces], or the other way.
struct ColumnAttrs {
  std::vector<int64_t> parts;
  int64_t pieces = 1;
  bool operator==(const ColumnAttrs&) const = default;
};

// Runs of `run` rows put in another order: run i of the output is run order[i] of the input.
struct RunAttrs {
  int64_t run = 1;
  std::vector<int64_t> order;
  int ring = 0;  // > 0: run r of the output is run (TP coordinate − r) mod ring of the input, instead of an order
  bool operator==(const RunAttrs&) const = default;
};

// Parts that cover rows [first_rows[i], ..) of `rows` rows. Merging attention: part 0 covers all, and with sinks one
// more logit a head, of heads [first_head, ..), enters the denominator.
struct PartAttrs {
  int64_t rows = 0;
  std::vector<int64_t> first_rows;
  bool sinks = false;
  int first_head = 0;
  bool operator==(const PartAttrs&) const = default;
};

// Attention over the keys of all ranks of a ring, of which this is rank `index` (trainer/passes/ring_attention.h). The
// keys are the rank's own, and those of others pass by; or all ranks', gathered rank after rank.
struct RingAttrs {
  AttentionAttrs core;  // its positions are of the rank's own queries and keys
  GroupKind group = GroupKind::kCp;
  int size = 1;
  int index = 0;
  bool gathered = false;
  bool operator==(const RingAttrs&) const = default;
};

// How logits [tokens, experts] become kept weights [tokens, top_k].
struct RouterAttrs {
  int top_k = 1;
  bool sigmoid = false;      // scores; else softmax
  bool top_k_first = false;  // softmax over the kept logits only
  bool normalize = false;    // kept weights are divided by their sum
  double scaling = 1.0;
  int groups = 1;  // only the best top_k_groups may win; a group's score is the sum of its best two
  int top_k_groups = 1;
  bool biased = false;            // a second operand, f32 [experts], is added to the scores that select
  bool sequence_sharded = false;  // balanced: t counts on from one TP rank's tokens to the next one's
  bool balanced = false;     // token t takes experts t·top_k, t·top_k + 1, ... mod experts, whatever the logits say
  Positions positions = {};  // of the logits' rows [s, b, ..], of all TP ranks: t counts tokens of the whole sequence
  bool operator==(const RouterAttrs&) const = default;
};

// Rows of the buffer that is sent to experts, cut into `peers` equal slots: peer p has experts [p·experts/peers, ...).
// Dropless: in a slot, expert after expert, as many rows as it has tokens. With a capacity: expert e owns rows
// [e·capacity, (e + 1)·capacity) and keeps the tokens of greatest weight, or the first ones.
struct DispatchAttrs {
  int64_t experts = 1;
  int64_t rows = 0;
  int64_t capacity = 0;  // 0: dropless
  bool by_position = false;
  int64_t peers = 1;
  bool operator==(const DispatchAttrs&) const = default;
};

// Where the rows that arrived lie, given how many each source sent to each expert: a source's slot begins at multiples
// of `slot_rows`, or (0) where the rows of the source before it end. Every member of the expert tensor-parallel group
// received `member_rows`, one member's after the other's.
struct ReceiveAttrs {
  int64_t members = 1;  // of the expert tensor-parallel group
  int64_t experts = 1;  // of this rank
  int64_t member_rows = 0;
  int64_t slot_rows = 0;
  int64_t capacity = 0;  // rows an expert owns in a slot; 0: as many as were sent
  bool operator==(const ReceiveAttrs&) const = default;
};

// Matrix products of each expert's rows with its own weight. `useful_rows` is what FLOPs count: tokens × top_k at
// balanced load.
struct GroupedGemmAttrs {
  int64_t useful_rows = 0;
  bool accumulate = false;
  int64_t experts = 0;  // of this rank, for who takes them apart
  int64_t only = -1;    // computes this expert alone and leaves the others' rows as they are; the first one clears them
  bool operator==(const GroupedGemmAttrs&) const = default;
};

// The same with quantized operands. Block 0: a scale a tensor.
struct GroupedQuantizedAttrs {
  GroupedGemmAttrs grouped;
  int64_t local_experts = 1;
  bool fast = false;  // accumulate in the tensor core's own width
  int block = 0;
  bool a_square = false;
  bool b_square = false;
  DType out = DType::kBf16;
  bool operator==(const GroupedQuantizedAttrs&) const = default;
};

// Every row gets scale · b of its expert; b's gradient is gradient · Σ dy. They differ where several ranks add a share
// each and every one of them sees the whole gradient.
struct GroupedBiasAttrs {
  bool accumulate = false;
  float scale = 1.0F;
  float gradient = 1.0F;
  bool operator==(const GroupedBiasAttrs&) const = default;
};

// tokens · (aux · experts · Σ f·P + z · mean(logsumexp²)) as gradients of the summed loss (model.h has f and P).
struct MoeLossAttrs {
  double aux = 0.0;
  double z = 0.0;
  bool sigmoid = false;   // P from sigmoid scores over their sum; else softmax
  double gradient = 1.0;  // factor of the backward: 1/t where t ranks compute the same
  bool operator==(const MoeLossAttrs&) const = default;
};

// out (+)= scale · losses.
struct LossSumAttrs {
  double scale = 1.0;
  bool accumulate = false;
  bool operator==(const LossSumAttrs&) const = default;
};

struct CountAttrs {
  int64_t experts = 1;
  int64_t sets = 1;  // counted apart: sequences of a micro-batch, as an operand says, else tokens t by t mod sets
  bool accumulate = false;
  bool operator==(const CountAttrs&) const = default;
};

// Columns of vocabulary-parallel logits from `vocabulary` on (counted over all TP ranks) are padding.
// Their value is every byte kPaddingByte: about -2^100 in bf16, fp32 and fp64's range, low enough and still finite.
inline constexpr unsigned char kPaddingByte = 0xf1;
struct VocabularyAttrs {
  int64_t vocabulary = 0;
  bool operator==(const VocabularyAttrs&) const = default;
};

struct ExpertBiasAttrs {
  double rate = 1e-3;
  bool operator==(const ExpertBiasAttrs&) const = default;
};

// Tokens moved forward by `by` positions: row p of the result [rows, b] is what lay `by` further on than it does, or
// -1, which is no token, where nothing does. `to` and `from` say where rows of the result and of the operand lie.
// Packed: a row's own sequence is all that is looked at (PositionAttrs).
struct ShiftAttrs {
  int by = 1;
  int64_t rows = 0;
  bool packed = false;
  Positions to = {};
  Positions from = {};
  bool operator==(const ShiftAttrs&) const = default;
};

// A contiguous piece of a flat optimizer bucket that one tensor fills.
struct BucketRange {
  std::string path;
  int64_t offset = 0;  // elements from the start of the bucket
  int64_t count = 0;
  bool decay = false;
  bool replicated = false;  // held whole by all ranks of BucketAttrs::replica_axis: counts once in the gradient norm
  bool counted = true;      // false: another stage or mesh holds the same tensor and counts it there
  bool operator==(const BucketRange&) const = default;
};

// Ops over this rank's shard of a flat bucket: elements [coordinate·n/size, ...) over `shard_group`. An operand of
// n/size elements is that shard alone.
struct BucketAttrs {
  GroupKind shard_group = GroupKind::kDpCp;
  int group_size = 1;
  bool sharded = false;
  int64_t elements = 0;           // n; 0: the gradients are there whole and have as many
  Axis replica_axis = Axis::kTp;  // of replicated ranges
  std::vector<BucketRange> ranges;
  bool operator==(const BucketAttrs&) const = default;
};

// Where the fp32 value of a weight that AdamW updates is kept: in an fp32 weight itself, in a state of its own, in 16
// more bits of a bf16 weight, nowhere (a bf16 weight alone, rounded stochastically), or in an fp16 state with a scale
// for each tensor's part of the shard.
enum class MasterForm : uint8_t { kNone, kState, kRemainder, kStochastic, kScaled };
const char* name(MasterForm form);

struct AdamAttrs {
  BucketAttrs bucket;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  float weight_decay = 0.1F;
  MasterForm master = MasterForm::kNone;
  bool scaled = false;  // states of 16 or 8 bits have a scale for each tensor's part of the shard
  int64_t seed = 0;     // of stochastic rounding
  bool operator==(const AdamAttrs&) const = default;
};

struct ScaleAttrs {
  double clip_grad = 1.0;  // 0: no clipping
  bool operator==(const ScaleAttrs&) const = default;
};

enum class ReduceKind : uint8_t { kSum, kMax };
enum class Direction : uint8_t { kForward, kBackward };  // along the pipeline

// How a stage's messages share its streams. Overlapped: four streams, one a direction and end. In turn: a send takes
// its turn in the compute stream, and receives wait for their messages on streams of their own. Batched: both stand in
// the compute stream, and those next to each other progress together.
enum class MessageForm : uint8_t { kOverlapped, kInTurn, kBatched };

struct CommAttrs {
  GroupKind group = GroupKind::kTp;
  int group_size = 1;
  ReduceKind reduce = ReduceKind::kSum;
  Direction direction = Direction::kForward;  // send and recv: to or from the next or the previous stage
  bool ring = false;                          // send and recv: the first stage is next to the last (interleaved chunks)
  MessageForm form = MessageForm::kOverlapped;  // send and recv
  bool own_shard = false;  // in = out = a flat buffer, of which a scatter writes and a gather sends this rank's 1/size
  int shards = 1;          // all-reduce in place of one part in `shards` of a flat buffer: that of this rank's index in
  GroupKind shard_group = GroupKind::kDpCpShard;  // this group
  int distance = 1;                               // ring shift: to the member so many places on
  int num_sm = 0;  // SMs and thread-block clusters of the kernel that moves it; 0: the library's choice
  int cga_size = 0;
  bool copy_engines = false;  // ring shift: by copy engines and no SM, where the members are GPUs of one host
  Shape message;              // recv: what arrives
  DType message_dtype = DType::kF32;
  int64_t useful_rows = 0;  // of dimension 0 of a padded exchange: rows that carry data at balanced load; 0: all
  bool operator==(const CommAttrs&) const = default;
};

// A planted slowness: so much CPU time of the rank's thread, or so long a spin of the device.
struct DelayAttrs {
  int64_t ns = 0;
  bool operator==(const DelayAttrs&) const = default;
};

using Attrs =
    std::variant<NoAttrs, GemmAttrs, GemmRowsAttrs, PackAttrs, ScaledGemmAttrs, ScaledRowsAttrs, QuantizeAttrs,
                 QuantizeBlocksAttrs, GemmBlocksAttrs, AmaxAttrs, ScaleUpdateAttrs, NormAttrs, EmbeddingAttrs,
                 AttentionAttrs, RopeAttrs, BucketAttrs, AdamAttrs, ScaleAttrs, CommAttrs, QkNormAttrs, BiasAttrs,
                 ActivationAttrs, ScaleByAttrs, PositionAttrs, DropoutAttrs, LatentAttrs, RouterAttrs, DispatchAttrs,
                 ReceiveAttrs, GroupedGemmAttrs, GroupedQuantizedAttrs, GroupedBiasAttrs, MoeLossAttrs, LossSumAttrs,
                 CountAttrs, VocabularyAttrs, ExpertBiasAttrs, ShiftAttrs, ColumnAttrs, RunAttrs, PartAttrs, RingAttrs,
                 DelayAttrs>;

}  // namespace mbb::trainer
