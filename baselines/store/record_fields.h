// The stored fields of every record, declared once: JSON writing and reading both walk these lists.
#pragma once

#include "baselines/store/records.h"

namespace mbb::baselines {

// visit(key, member) for an optional field, visit.need(key, member) for one without which the record means nothing.

template <typename Visitor>
void fields(Visitor& visit, profiler::CapturedValue& r) {
  visit.need("name", r.name);
  visit("value", r.value);
  visit("hashed", r.hashed);
}

template <typename Visitor>
void fields(Visitor& visit, profiler::HostFact& r) {
  visit.need("key", r.key);
  visit("value", r.value);
  visit("in_class", r.in_class);
}

template <typename Visitor>
void fields(Visitor& visit, profiler::Fingerprint& r) {
  visit("class_hash", r.class_hash);
  visit("facts", r.facts);
}

template <typename Visitor>
void fields(Visitor& visit, Run& r) {
  visit.need("id", r.id);
  visit("command", r.command);
  visit("suite", r.suite);
  visit("spec", r.spec);
  visit("tag", r.tag);
  visit("synthetic", r.synthetic);
  visit.need("created_unix_ns", r.created_unix_ns);
  visit("ended_unix_ns", r.ended_unix_ns);
  visit("exit_status", r.exit_status);
  visit("argv", r.argv);
  visit("environment", r.environment);
  visit("fingerprint", r.fingerprint);
  visit("epoch", r.epoch);
  visit("planned_cells", r.planned_cells);
}

template <typename Visitor>
void fields(Visitor& visit, KnobValue& r) {
  visit.need("key", r.key);
  visit("value", r.value);
  visit("source", r.source);
  visit("file", r.file);
  visit("line", r.line);
  visit("identity", r.identity);
}

template <typename Visitor>
void fields(Visitor& visit, Work& r) {
  visit("tokens_per_step", r.tokens_per_step);
  visit("flops_per_token_causal", r.flops_per_token_causal);
  visit("flops_per_token_full", r.flops_per_token_full);
  visit("formula", r.formula);
  visit("formula_version", r.formula_version);
}

template <typename Visitor>
void fields(Visitor& visit, Metric& r) {
  visit.need("name", r.name);
  visit.need("value", r.value);
  visit("low", r.low);
  visit("high", r.high);
  visit("unit", r.unit);
  visit("launches", r.launches);
  visit("interval", r.interval);
}

template <typename Visitor>
void fields(Visitor& visit, VerdictRow& r) {
  visit.need("subject", r.subject);
  visit.need("verdict", r.verdict);
  visit("against", r.against);
  visit("change", r.change);
  visit("low", r.low);
  visit("high", r.high);
  visit("text", r.text);
}

template <typename Visitor>
void fields(Visitor& visit, CategoryBytes& r) {
  visit.need("category", r.category);
  visit("planned_bytes", r.planned_bytes);
  visit("measured_bytes", r.measured_bytes);
}

template <typename Visitor>
void fields(Visitor& visit, TensorBytes& r) {
  visit.need("path", r.path);
  visit("category", r.category);
  visit("offset", r.offset);
  visit("bytes", r.bytes);
  visit("first_writer", r.first_writer);
  visit("last_reader", r.last_reader);
  visit("from", r.from);
  visit("to", r.to);
}

template <typename Visitor>
void fields(Visitor& visit, MemorySample& r) {
  visit("at", r.at);
  visit("category", r.category);
  visit("bytes", r.bytes);
}

template <typename Visitor>
void fields(Visitor& visit, MemoryMap& r) {
  visit("rank_class", r.rank_class);
  visit("unit", r.unit);
  visit("peak_bytes", r.peak_bytes);
  visit("capacity_bytes", r.capacity_bytes);
  visit("categories", r.categories);
  visit("live_at_peak", r.live_at_peak);
  visit("tensors", r.tensors);
  visit("curve", r.curve);
}

template <typename Visitor>
void fields(Visitor& visit, NamedCount& r) {
  visit.need("name", r.name);
  visit("count", r.count);
}

// launch.json; the steps, ops and memory of a launch have files of their own.
template <typename Visitor>
void fields(Visitor& visit, Launch& r) {
  visit.need("index", r.index);
  visit("seed", r.seed);
  visit("started_unix_ns", r.started_unix_ns);
  visit("ended_unix_ns", r.ended_unix_ns);
  visit("exit_status", r.exit_status);
  visit("signal", r.signal);
  visit("reason", r.reason);
  visit("loss_checksum", r.loss_checksum);
  visit("counts", r.counts);
  visit("trace_files", r.trace_files);
}

// config.json
template <typename Visitor>
void config_fields(Visitor& visit, Cell& r) {
  visit.need("run", r.run);
  visit.need("name", r.name);
  visit("index", r.index);
  visit.need("class", r.result_class);
  visit("device", r.device);
  visit("devices", r.devices);
  visit("numerics_only", r.numerics_only);
  visit("model", r.model);
  visit("proxy_of", r.proxy_of);
  visit("gpus", r.gpus);
  visit("ranks", r.ranks);
  visit("knobs", r.knobs);
  visit("work", r.work);
  visit("data_hash", r.data_hash);
  visit("identity_hash", r.identity_hash);
  visit("program_hash", r.program_hash);
  visit("published", r.published);
}

// result.json
template <typename Visitor>
void result_fields(Visitor& visit, Cell& r) {
  visit.need("status", r.status);
  visit("reason", r.reason);
  visit("loss_checksum", r.loss_checksum);
  visit("metrics", r.metrics);
  visit("verdicts", r.verdicts);
  visit("memory", r.memory);
}

}  // namespace mbb::baselines
