// Writing runs and cells into the store's tables.
#include <fmt/format.h>

#include <unordered_map>

#include "baselines/store/store_impl.h"

namespace mbb::baselines {
namespace {

// Ids of words, asked for once each.
class Words {
 public:
  static Result<Words> open(const Database& database) {
    MB_ASSIGN(Statement find, database.prepare("SELECT id FROM words WHERE text = ?1"));
    MB_ASSIGN(Statement add, database.prepare("INSERT INTO words(text) VALUES(?1)"));
    return Words(database, std::move(find), std::move(add));
  }

  Result<std::int64_t> id(const std::string& text) {
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    find_.bind_all(text);
    MB_ASSIGN(const bool row, find_.step());
    std::int64_t found = row ? find_.integer(0) : 0;
    find_.reset();
    if (!row) {
      MB_TRY(add_.run(text));
      found = database_->last_row();
    }
    ids_.emplace(text, found);
    return found;
  }

 private:
  Words(const Database& database, Statement find, Statement add)
      : database_(&database), find_(std::move(find)), add_(std::move(add)) {}
  const Database* database_;
  Statement find_;
  Statement add_;
  std::unordered_map<std::string, std::int64_t> ids_;
};

// Runs `insert` for each element with its position: run(statement, position, element).
template <typename Elements, typename RunOne>
Status insert_each(const Database& database, const char* sql, const Elements& elements, RunOne run_one) {
  if (elements.empty()) return {};
  MB_ASSIGN(Statement insert, database.prepare(sql));
  int position = 0;
  for (const auto& element : elements) MB_TRY(run_one(insert, position++, element));
  return {};
}

Status write_captured(const Database& database, std::int64_t run, const char* origin,
                      const std::vector<profiler::CapturedValue>& values) {
  return insert_each(database, "INSERT INTO captured VALUES(?1,?2,?3,?4,?5,?6)", values,
                     [&](Statement& insert, int seq, const profiler::CapturedValue& value) {
                       return insert.run(run, origin, seq, value.name, value.value, value.hashed);
                     });
}

// Joins a run's metrics to their series. Cells whose numbers do not count stay outside; made-up runs have series of
// their own.
Status link_series(const Database& database, std::int64_t run, std::int64_t cell) {
  constexpr const char* kClass = "CASE WHEN r.synthetic = '' THEN r.class_hash ELSE 'synthetic-' || r.class_hash END";
  const std::string counts = "c.status = 'ok' AND c.numerics_only = 0 AND c.run = ?1 AND (?2 = 0 OR c.id = ?2)";
  MB_ASSIGN(Statement add,
            database.prepare(fmt::format("INSERT OR IGNORE INTO series(identity_hash, class_hash, epoch, metric) "
                                         "SELECT c.identity_hash, {}, r.epoch, m.name FROM cells c "
                                         "JOIN metrics m ON m.cell = c.id JOIN runs r ON r.n = c.run WHERE {}",
                                         kClass, counts)));
  MB_TRY(add.run(run, cell));
  MB_ASSIGN(
      Statement link,
      database.prepare(fmt::format(
          "UPDATE metrics SET created_unix_ns = (SELECT created_unix_ns FROM runs WHERE n = ?1), series = "
          "(SELECT s.id FROM cells c JOIN runs r ON r.n = c.run JOIN series s ON s.identity_hash = c.identity_hash "
          "AND s.class_hash = {} AND s.epoch = r.epoch AND s.metric = metrics.name WHERE c.id = metrics.cell) "
          "WHERE cell IN (SELECT c.id FROM cells c WHERE {})",
          kClass, counts)));
  return link.run(run, cell);
}

Result<std::int64_t> run_number(const Database& database, const std::string& id) {
  MB_ASSIGN(Statement find, database.prepare("SELECT n FROM runs WHERE id = ?1"));
  find.bind_all(id);
  MB_ASSIGN(const bool row, find.step());
  if (!row)
    return fail(ErrorCode::kNotFound, fmt::format("store {}: there is no run {}", database.file().string(), id));
  return find.integer(0);
}

Status write_tensors(const Database& database, Words& words, std::int64_t map, bool at_peak,
                     const std::vector<TensorBytes>& tensors) {
  return insert_each(database, "INSERT INTO memory_tensors VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)", tensors,
                     [&](Statement& insert, int seq, const TensorBytes& tensor) -> Status {
                       MB_ASSIGN(const std::int64_t path, words.id(tensor.path));
                       MB_ASSIGN(const std::int64_t category, words.id(tensor.category));
                       MB_ASSIGN(const std::int64_t writer, words.id(tensor.first_writer));
                       MB_ASSIGN(const std::int64_t reader, words.id(tensor.last_reader));
                       return insert.run(map, at_peak, seq, path, category, tensor.offset, tensor.bytes, writer, reader,
                                         tensor.from, tensor.to);
                     });
}

// `launch` 0: the plan of the cell.
Status write_memory(const Database& database, Words& words, std::int64_t cell, std::int64_t launch,
                    const std::vector<MemoryMap>& maps) {
  constexpr const char* kInsert = "INSERT INTO memory_maps VALUES(NULL,?1,nullif(?2,0),?3,?4,?5,?6)";
  return insert_each(database, kInsert, maps, [&](Statement& insert, int, const MemoryMap& map) -> Status {
    MB_TRY(insert.run(cell, launch, map.rank_class, map.unit, map.peak_bytes, map.capacity_bytes));
    const std::int64_t id = database.last_row();
    MB_TRY(insert_each(database, "INSERT INTO memory_categories VALUES(?1,?2,?3,?4,?5)", map.categories,
                       [&](Statement& row, int seq, const CategoryBytes& c) {
                         return row.run(id, seq, c.category, c.planned_bytes, c.measured_bytes);
                       }));
    MB_TRY(write_tensors(database, words, id, true, map.live_at_peak));
    MB_TRY(write_tensors(database, words, id, false, map.tensors));
    return insert_each(database, "INSERT INTO memory_curve VALUES(?1,?2,?3,?4,?5)", map.curve,
                       [&](Statement& row, int seq, const MemorySample& sample) -> Status {
                         MB_ASSIGN(const std::int64_t category, words.id(sample.category));
                         return row.run(id, seq, sample.at, category, sample.bytes);
                       });
  });
}

Status write_ops(const Database& database, Words& words, std::int64_t launch, const std::vector<OpRow>& ops) {
  return insert_each(database, "INSERT INTO ops VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)", ops,
                     [&](Statement& insert, int seq, const OpRow& op) -> Status {
                       MB_ASSIGN(const std::int64_t path, words.id(op.path));
                       MB_ASSIGN(const std::int64_t kind, words.id(op.kind));
                       MB_ASSIGN(const std::int64_t role, words.id(op.role));
                       MB_ASSIGN(const std::int64_t phase, words.id(op.phase));
                       MB_ASSIGN(const std::int64_t stream, words.id(op.stream));
                       MB_ASSIGN(const std::int64_t rank_class, words.id(op.rank_class));
                       return insert.run(launch, seq, path, kind, role, phase, stream, rank_class, op.calls,
                                         op.total_ns, op.flops, op.bytes);
                     });
}

Status write_launches(const Database& database, Words& words, std::int64_t cell, const std::vector<Launch>& launches) {
  constexpr const char* kInsert = "INSERT INTO launches VALUES(NULL,?1,?2,?3,?4,?5,?6,?7,?8,?9)";
  return insert_each(database, kInsert, launches, [&](Statement& insert, int, const Launch& launch) -> Status {
    MB_TRY(insert.run(cell, launch.index, launch.seed, launch.started_unix_ns, launch.ended_unix_ns, launch.exit_status,
                      launch.signal, launch.reason, launch.loss_checksum));
    const std::int64_t id = database.last_row();
    MB_TRY(
        insert_each(database, "INSERT INTO launch_counts VALUES(?1,?2,?3,?4)", launch.counts,
                    [&](Statement& row, int seq, const NamedCount& c) { return row.run(id, seq, c.name, c.count); }));
    MB_TRY(insert_each(database, "INSERT INTO launch_traces VALUES(?1,?2,?3)", launch.trace_files,
                       [&](Statement& row, int seq, const std::string& file) { return row.run(id, seq, file); }));
    MB_TRY(insert_each(database, "INSERT INTO steps VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)",
                       launch.steps, [&](Statement& row, int seq, const Step& s) {
                         return row.run(id, seq, s.index, s.wall_ns, s.cpu_ns, s.modelled_ns, s.loss, s.grad_norm,
                                        s.learning_rate, s.tokens, s.sequence_squares, s.flags, s.balance_loss,
                                        s.z_loss, s.mtp_loss, s.reference_ns);
                       }));
    MB_TRY(write_ops(database, words, id, launch.ops));
    return write_memory(database, words, cell, id, launch.memory);
  });
}

Status write_cell_tables(const Database& database, std::int64_t id, const Cell& cell) {
  MB_TRY(insert_each(database, "INSERT INTO knobs VALUES(?1,?2,?3,?4,?5,?6,?7,?8)", cell.knobs,
                     [&](Statement& row, int seq, const KnobValue& k) {
                       return row.run(id, seq, k.key, k.value, k.source, k.file, k.line, k.identity);
                     }));
  MB_TRY(insert_each(database, "INSERT INTO metrics VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,NULL,NULL)", cell.metrics,
                     [&](Statement& row, int seq, const Metric& m) {
                       return row.run(id, seq, m.name, m.value, m.low, m.high, m.unit, m.launches, m.interval);
                     }));
  MB_TRY(insert_each(database, "INSERT INTO verdicts VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)", cell.verdicts,
                     [&](Statement& row, int seq, const VerdictRow& v) {
                       return row.run(id, seq, v.subject, name(v.verdict), v.against, v.change, v.low, v.high, v.text);
                     }));
  MB_ASSIGN(Words words, Words::open(database));
  MB_TRY(write_memory(database, words, id, 0, cell.memory));
  return write_launches(database, words, id, cell.launches);
}

}  // namespace

Status write_run_row(const Database& database, const Run& run, const std::string& bundle) {
  MB_ASSIGN(Transaction transaction, Transaction::begin(database));
  MB_ASSIGN(Statement put,
            database.prepare(
                "INSERT INTO runs VALUES(NULL,?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12) ON CONFLICT(id) DO UPDATE SET "
                "command=?2, suite=?3, spec=?4, tag=?5, synthetic=?6, created_unix_ns=?7, ended_unix_ns=?8, "
                "exit_status=?9, class_hash=?10, epoch=?11, bundle=?12"));
  MB_TRY(put.run(run.id, run.command, run.suite, run.spec, run.tag, run.synthetic, run.created_unix_ns,
                 run.ended_unix_ns, run.exit_status, run.fingerprint.class_hash, run.epoch, bundle));
  MB_ASSIGN(const std::int64_t number, run_number(database, run.id));
  for (const char* table : {"captured", "facts", "planned_cells"}) {
    MB_ASSIGN(Statement clear, database.prepare(fmt::format("DELETE FROM {} WHERE run = ?1", table)));
    MB_TRY(clear.run(number));
  }
  MB_TRY(write_captured(database, number, "argv", run.argv));
  MB_TRY(write_captured(database, number, "environment", run.environment));
  MB_TRY(insert_each(database, "INSERT INTO facts VALUES(?1,?2,?3,?4,?5)", run.fingerprint.facts,
                     [&](Statement& row, int seq, const profiler::HostFact& fact) {
                       return row.run(number, seq, fact.key, fact.value, fact.in_class);
                     }));
  MB_TRY(insert_each(database, "INSERT INTO planned_cells VALUES(?1,?2,?3)", run.planned_cells,
                     [&](Statement& row, int seq, const std::string& cell) { return row.run(number, seq, cell); }));
  // The run's epoch or class may have changed, and with it where its metrics belong.
  MB_TRY(link_series(database, number, 0));
  return transaction.commit();
}

Status write_cell_rows(const Database& database, const Cell& cell) {
  MB_ASSIGN(Transaction transaction, Transaction::begin(database));
  MB_ASSIGN(const std::int64_t run, run_number(database, cell.run));
  MB_ASSIGN(Statement clear, database.prepare("DELETE FROM cells WHERE run = ?1 AND name = ?2"));
  MB_TRY(clear.run(run, cell.name));
  MB_ASSIGN(Statement put, database.prepare("INSERT INTO cells VALUES(NULL,?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,"
                                            "?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24)"));
  const Work& work = cell.work;
  MB_TRY(put.run(run, cell.name, cell.index, name(cell.result_class), class_label(cell), cell.device, cell.devices,
                 cell.numerics_only, name(cell.status), cell.reason, cell.model, cell.proxy_of, cell.gpus, cell.ranks,
                 work.tokens_per_step, work.flops_per_token_causal, work.flops_per_token_full, work.formula,
                 work.formula_version, cell.identity_hash, cell.program_hash, cell.published, cell.loss_checksum,
                 cell.data_hash));
  const std::int64_t id = database.last_row();
  MB_TRY(write_cell_tables(database, id, cell));
  MB_TRY(link_series(database, run, id));
  return transaction.commit();
}

}  // namespace mbb::baselines
