// Reading a run back from the store's tables.
#include <fmt/format.h>

#include "baselines/store/store_impl.h"

namespace mbb::baselines {
namespace {

// Calls `take` for each row of a query with one integer parameter.
template <typename Take>
Status each_row(const Database& database, const char* sql, std::int64_t parameter, Take take) {
  MB_ASSIGN(Statement query, database.prepare(sql));
  query.bind_all(parameter);
  while (true) {
    MB_ASSIGN(const bool row, query.step());
    if (!row) return {};
    MB_TRY(take(query));
  }
}

Status read_run_tables(const Database& database, std::int64_t number, Run& run) {
  MB_TRY(each_row(database, "SELECT origin, name, value, hashed FROM captured WHERE run = ?1 ORDER BY origin, seq",
                  number, [&](const Statement& row) -> Status {
                    auto& values = row.text(0) == "argv" ? run.argv : run.environment;
                    values.push_back({row.text(1), row.text(2), row.flag(3)});
                    return {};
                  }));
  MB_TRY(each_row(database, "SELECT key, value, in_class FROM facts WHERE run = ?1 ORDER BY seq", number,
                  [&](const Statement& row) -> Status {
                    run.fingerprint.facts.push_back({row.text(0), row.text(1), row.flag(2)});
                    return {};
                  }));
  return each_row(database, "SELECT name FROM planned_cells WHERE run = ?1 ORDER BY seq", number,
                  [&](const Statement& row) -> Status {
                    run.planned_cells.push_back(row.text(0));
                    return {};
                  });
}

Status read_map(const Database& database, std::int64_t id, MemoryMap& map) {
  MB_TRY(each_row(database,
                  "SELECT category, planned_bytes, measured_bytes FROM memory_categories WHERE map = ?1 ORDER BY seq",
                  id, [&](const Statement& row) -> Status {
                    map.categories.push_back({row.text(0), row.integer(1), row.integer(2)});
                    return {};
                  }));
  MB_TRY(each_row(database,
                  "SELECT t.at_peak, p.text, c.text, t.arena_offset, t.bytes, w.text, r.text, t.from_at, t.to_at "
                  "FROM memory_tensors t JOIN words p ON p.id = t.path JOIN words c ON c.id = t.category "
                  "JOIN words w ON w.id = t.first_writer JOIN words r ON r.id = t.last_reader "
                  "WHERE t.map = ?1 ORDER BY t.at_peak, t.seq",
                  id, [&](const Statement& row) -> Status {
                    auto& tensors = row.flag(0) ? map.live_at_peak : map.tensors;
                    tensors.push_back({row.text(1), row.text(2), row.integer(3), row.integer(4), row.text(5),
                                       row.text(6), row.integer(7), row.integer(8)});
                    return {};
                  }));
  return each_row(database,
                  "SELECT s.at, c.text, s.bytes FROM memory_curve s JOIN words c ON c.id = s.category "
                  "WHERE s.map = ?1 ORDER BY s.seq",
                  id, [&](const Statement& row) -> Status {
                    map.curve.push_back({row.integer(0), row.text(1), row.integer(2)});
                    return {};
                  });
}

Status read_maps(const Database& database, const char* where, std::int64_t owner, std::vector<MemoryMap>& maps) {
  const std::string sql = fmt::format(
      "SELECT id, rank_class, unit, peak_bytes, capacity_bytes FROM memory_maps WHERE {} ORDER BY id", where);
  return each_row(database, sql.c_str(), owner, [&](const Statement& row) -> Status {
    MemoryMap map;
    map.rank_class = row.text(1);
    map.unit = row.text(2);
    map.peak_bytes = row.integer(3);
    map.capacity_bytes = row.integer(4);
    MB_TRY(read_map(database, row.integer(0), map));
    maps.push_back(std::move(map));
    return {};
  });
}

Status read_launch_tables(const Database& database, std::int64_t id, Launch& launch) {
  MB_TRY(each_row(database, "SELECT name, count FROM launch_counts WHERE launch = ?1 ORDER BY seq", id,
                  [&](const Statement& row) -> Status {
                    launch.counts.push_back({row.text(0), row.integer(1)});
                    return {};
                  }));
  MB_TRY(each_row(database, "SELECT file FROM launch_traces WHERE launch = ?1 ORDER BY seq", id,
                  [&](const Statement& row) -> Status {
                    launch.trace_files.push_back(row.text(0));
                    return {};
                  }));
  MB_TRY(
      each_row(database,
               "SELECT step, wall_ns, cpu_ns, modelled_ns, loss, grad_norm, learning_rate, tokens, sequence_squares, "
               "flags, balance_loss, z_loss, mtp_loss, reference_ns FROM steps WHERE launch = ?1 ORDER BY seq",
               id, [&](const Statement& row) -> Status {
                 launch.steps.push_back({row.integer(0), row.integer(1), row.integer(2), row.integer(3), row.real(4),
                                         row.real(5), row.real(6), row.integer(7), row.integer(8),
                                         static_cast<std::uint32_t>(row.integer(9)), row.real(10), row.real(11),
                                         row.real(12), row.integer(13)});
                 return {};
               }));
  MB_TRY(each_row(
      database,
      "SELECT p.text, k.text, o.text, h.text, t.text, a.text, x.calls, x.total_ns, x.flops, x.bytes FROM ops x "
      "JOIN words p ON p.id = x.path JOIN words k ON k.id = x.kind JOIN words o ON o.id = x.role "
      "JOIN words h ON h.id = x.phase JOIN words t ON t.id = x.stream JOIN words a ON a.id = x.rank_class "
      "WHERE x.launch = ?1 ORDER BY x.seq",
      id, [&](const Statement& row) -> Status {
        launch.ops.push_back({row.text(0), row.text(1), row.text(2), row.text(3), row.text(4), row.text(5),
                              row.integer(6), row.integer(7), row.real(8), row.integer(9)});
        return {};
      }));
  return read_maps(database, "launch = ?1", id, launch.memory);
}

Status read_launches(const Database& database, std::int64_t cell_id, Cell& cell) {
  return each_row(database,
                  "SELECT id, seq, seed, started_unix_ns, ended_unix_ns, exit_status, signal, reason, loss_checksum "
                  "FROM launches WHERE cell = ?1 ORDER BY seq",
                  cell_id, [&](const Statement& row) -> Status {
                    Launch launch;
                    launch.index = row.small(1);
                    launch.seed = row.integer(2);
                    launch.started_unix_ns = row.integer(3);
                    launch.ended_unix_ns = row.integer(4);
                    launch.exit_status = row.small(5);
                    launch.signal = row.small(6);
                    launch.reason = row.text(7);
                    launch.loss_checksum = row.text(8);
                    MB_TRY(read_launch_tables(database, row.integer(0), launch));
                    cell.launches.push_back(std::move(launch));
                    return {};
                  });
}

Status read_cell_tables(const Database& database, std::int64_t id, Cell& cell) {
  MB_TRY(
      each_row(database, "SELECT key, value, source, file, line, identity FROM knobs WHERE cell = ?1 ORDER BY seq", id,
               [&](const Statement& row) -> Status {
                 cell.knobs.push_back({row.text(0), row.text(1), row.text(2), row.text(3), row.small(4), row.flag(5)});
                 return {};
               }));
  MB_TRY(each_row(database,
                  "SELECT name, value, low, high, unit, launches, interval FROM metrics WHERE cell = ?1 ORDER BY seq",
                  id, [&](const Statement& row) -> Status {
                    cell.metrics.push_back(
                        {row.text(0), row.real(1), row.real(2), row.real(3), row.text(4), row.small(5), row.text(6)});
                    return {};
                  }));
  MB_TRY(each_row(
      database, "SELECT subject, verdict, against, change, low, high, text FROM verdicts WHERE cell = ?1 ORDER BY seq",
      id, [&](const Statement& row) -> Status {
        MB_ASSIGN(const Verdict verdict, parse_verdict(row.text(1)));
        cell.verdicts.push_back(
            {row.text(0), verdict, row.text(2), row.real(3), row.real(4), row.real(5), row.text(6)});
        return {};
      }));
  MB_TRY(read_maps(database, "cell = ?1 AND launch IS NULL", id, cell.memory));
  return read_launches(database, id, cell);
}

Result<Cell> cell_of(const Statement& row, const std::string& run) {
  Cell cell;
  cell.run = run;
  cell.name = row.text(1);
  cell.index = row.small(2);
  MB_ASSIGN(cell.result_class, parse_result_class(row.text(3)));
  cell.device = row.text(4);
  cell.devices = row.small(5);
  cell.numerics_only = row.flag(6);
  MB_ASSIGN(cell.status, parse_cell_status(row.text(7)));
  cell.reason = row.text(8);
  cell.model = row.text(9);
  cell.proxy_of = row.text(10);
  cell.gpus = row.small(11);
  cell.ranks = row.small(12);
  cell.work = {row.integer(13), row.real(14), row.real(15), row.text(16), row.small(17)};
  cell.identity_hash = row.text(18);
  cell.program_hash = row.text(19);
  cell.published = row.text(20);
  cell.loss_checksum = row.text(21);
  cell.data_hash = row.text(22);
  return cell;
}

}  // namespace

Result<Run> read_run_rows(const Database& database, const std::string& id) {
  MB_ASSIGN(Statement find, database.prepare("SELECT n, command, suite, spec, tag, synthetic, created_unix_ns, "
                                             "ended_unix_ns, exit_status, class_hash, epoch FROM runs WHERE id = ?1"));
  find.bind_all(id);
  MB_ASSIGN(const bool there, find.step());
  if (!there)
    return fail(ErrorCode::kNotFound, fmt::format("store {}: there is no run {}", database.file().string(), id));
  Run run;
  run.id = id;
  const std::int64_t number = find.integer(0);
  run.command = find.text(1);
  run.suite = find.text(2);
  run.spec = find.text(3);
  run.tag = find.text(4);
  run.synthetic = find.text(5);
  run.created_unix_ns = find.integer(6);
  run.ended_unix_ns = find.integer(7);
  run.exit_status = find.small(8);
  run.fingerprint.class_hash = find.text(9);
  run.epoch = find.text(10);
  MB_TRY(read_run_tables(database, number, run));
  const Status cells = each_row(
      database,
      "SELECT id, name, seq, class, device, devices, numerics_only, status, reason, model, proxy_of, gpus, "
      "ranks, tokens_per_step, flops_per_token_causal, flops_per_token_full, formula, formula_version, "
      "identity_hash, program_hash, published, loss_checksum, data_hash FROM cells WHERE run = ?1 ORDER BY seq, name",
      number, [&](const Statement& row) -> Status {
        MB_ASSIGN(Cell cell, cell_of(row, id));
        MB_TRY(read_cell_tables(database, row.integer(0), cell));
        run.cells.push_back(std::move(cell));
        return {};
      });
  if (!cells) return tl::unexpected<Error>(cells.error());
  return run;
}

}  // namespace mbb::baselines
