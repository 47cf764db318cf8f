// Copies out after each writer, copies back a layer ahead.
#include "trainer/passes/offload.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "trainer/ops/table.h"
#include "trainer/passes/layers.h"
#include "trainer/program/builder.h"

namespace mbb::trainer {
namespace {

class Offloader {
 public:
  Offloader(Program& program, int forward, int backward)
      : p_(program), b_(program), forward_(forward), backward_(backward) {
    for (const Op& op : ops(forward)) {
      const std::string layer(layer_of(op.path));
      if (!layer.empty() && !number_.contains(layer)) {
        number_.emplace(layer, static_cast<int64_t>(number_.size()));
      }
    }
    for (const Tensor& t : p_.tensors)
      if (t.view_of != kNoTensor) shared_.insert(t.view_of);
  }

  int64_t layers() const { return static_cast<int64_t>(number_.size()); }

  void take(int64_t layers) {
    const std::vector<Op>& back = ops(backward_);
    for (size_t o = 0; o < back.size(); ++o)
      for (const TensorId id : back[o].in) first_reader_.try_emplace(id, o);
    copy_out(layers);
    copy_back();
  }

  // Weights of these layers live in host memory; each use of a layer loads them, a layer ahead.
  void take_weights(int64_t layers) {
    const std::map<TensorId, int64_t> weights = own_weights(layers);
    load(forward_, weights, -1, ".load");
    load(backward_, weights, +1, ".reload");
    for (const auto& [id, layer] : weights) p_.tensor(id).space = Space::kHost;
  }

 private:
  std::vector<Op>& ops(int segment) { return p_.segments[static_cast<size_t>(segment)].ops; }

  int64_t layer_number(const Op& op) const {
    const auto at = number_.find(std::string(layer_of(op.path)));
    return at == number_.end() ? -1 : at->second;
  }

  bool movable(TensorId id, const Op& writer) const {
    const Tensor& t = p_.tensor(id);
    return first_reader_.contains(id) && t.scope == Scope::kCall && t.category == Category::kActivation &&
           t.view_of == kNoTensor && !shared_.contains(id) && writer.when == When::kAlways;
  }

  // Weights that one layer alone reads, and which.
  std::map<TensorId, int64_t> own_weights(int64_t layers) {
    std::map<TensorId, std::set<int64_t>> readers;
    for (const int segment : {forward_, backward_})
      for (const Op& op : ops(segment))
        for (const TensorId id : op.in)
          if (p_.tensor(id).category == Category::kWeight && p_.tensor(id).scope == Scope::kPersistent)
            readers[id].insert(layer_number(op));
    std::map<TensorId, int64_t> weights;
    for (const auto& [id, of] : readers)
      if (of.size() == 1 && *of.begin() >= 0 && *of.begin() < layers) weights[id] = *of.begin();
    return weights;
  }

  // Copies go before the first op of the layer `ahead` of a weight's own, or of its own where there is none.
  void load(int segment, const std::map<TensorId, int64_t>& weights, int64_t ahead, const char* suffix) {
    std::vector<Op> before = std::move(ops(segment));
    ops(segment).clear();
    std::map<int64_t, size_t> begins;
    for (size_t o = 0; o < before.size(); ++o) begins.try_emplace(layer_number(before[o]), o);
    std::set<TensorId> read;
    for (const Op& op : before) read.insert(op.in.begin(), op.in.end());
    std::multimap<size_t, TensorId> due;
    for (const auto& [id, layer] : weights) {
      if (!read.contains(id)) continue;
      const auto early = begins.find(layer + ahead);
      due.emplace(early == begins.end() ? begins.at(layer) : std::min(early->second, begins.at(layer)), id);
    }
    std::map<TensorId, TensorId> loaded;
    b_.enter(segment);
    for (size_t o = 0; o < before.size(); ++o) {
      const auto [begin, end] = due.equal_range(o);
      for (auto at = begin; at != end; ++at) {
        const TensorId id = at->second;
        Tensor staged;
        staged.path = p_.tensor(id).path + suffix + "ed";
        staged.dtype = p_.tensor(id).dtype;
        staged.shape = p_.tensor(id).shape;
        staged.category = Category::kWorkspace;
        loaded[id] = b_.declare(std::move(staged));
        copy(id, loaded[id], p_.tensor(id).path + suffix);
      }
      for (TensorId& id : before[o].in)
        if (const auto at = loaded.find(id); at != loaded.end()) id = at->second;
      b_.ops().push_back(std::move(before[o]));
    }
  }

  TensorId declare(TensorId like, const char* suffix, Space space) {
    Tensor t = p_.tensor(like);
    t.path += suffix;
    t.space = space;
    return b_.declare(std::move(t));
  }

  void copy(TensorId from, TensorId to, std::string path) {
    b_.emit(kCopy, std::move(path), {from}, NoAttrs{}, {.stream = Stream::kCopy, .out = {to}});
  }

  void copy_out(int64_t layers) {
    std::vector<Op> before = std::move(ops(forward_));
    ops(forward_).clear();
    b_.enter(forward_);
    for (Op& op : before) {
      const int64_t layer = layer_number(op);
      const std::vector<TensorId> out = op.out;
      std::vector<TensorId> moved;
      if (layer >= 0 && layer < layers)
        std::copy_if(out.begin(), out.end(), std::back_inserter(moved), [&](TensorId id) { return movable(id, op); });
      b_.ops().push_back(std::move(op));
      for (const TensorId id : moved) {
        const TensorId host = declare(id, ".host", Space::kHost);
        copy(id, host, p_.tensor(id).path + ".offload");
        away_.push_back({id, host, layer});
      }
    }
  }

  void copy_back() {
    std::vector<Op> before = std::move(ops(backward_));
    ops(backward_).clear();
    // The first op of each layer's backward: where the layer before it begins to come back.
    std::map<int64_t, size_t> begins;
    for (size_t o = 0; o < before.size(); ++o) begins.try_emplace(layer_number(before[o]), o);
    std::multimap<size_t, size_t> due;  // backward op -> entry of away_
    for (size_t i = 0; i < away_.size(); ++i) {
      const size_t reader = first_reader_.at(away_[i].value);
      const auto ahead = begins.find(away_[i].layer + 1);
      due.emplace(ahead == begins.end() ? reader : std::min(reader, ahead->second), i);
    }
    std::map<TensorId, TensorId> back;
    b_.enter(backward_);
    for (size_t o = 0; o < before.size(); ++o) {
      const auto [begin, end] = due.equal_range(o);
      for (auto at = begin; at != end; ++at) {
        const Away& away = away_[at->second];
        const std::string path = p_.tensor(away.value).path;
        back[away.value] = declare(away.value, ".reload", Space::kDevice);
        copy(away.host, back[away.value], path + ".reload");
      }
      for (TensorId& id : before[o].in)
        if (const auto at = back.find(id); at != back.end()) id = at->second;
      b_.ops().push_back(std::move(before[o]));
    }
  }

  struct Away {
    TensorId value, host;
    int64_t layer;
  };

  Program& p_;
  Builder b_;
  int forward_, backward_;
  std::map<std::string, int64_t> number_;    // layer -> place in the chunk
  std::set<TensorId> shared_;                // storages of views
  std::map<TensorId, size_t> first_reader_;  // in the backward
  std::vector<Away> away_;
};

}  // namespace

void offload(Program& program, int forward, int backward, const MemoryConfig& memory) {
  if (!memory.cpu_offloading) return;
  Offloader pass(program, forward, backward);
  const int64_t wanted = memory.cpu_offloading_num_layers;
  const int64_t layers = wanted > 0 ? std::min(wanted, pass.layers()) : std::max<int64_t>(1, pass.layers() - 1);
  pass.take(layers);
  if (memory.cpu_offloading_weights) pass.take_weights(layers);
}

}  // namespace mbb::trainer
