"""One violation of every rule, with the check that must find it and its line; and code that breaks none."""

import format as format_check
import layering
import tidy


def source(*lines):
    return "// A source file with a purpose.\n" + "\n".join(lines) + "\n"


def include(*targets):
    return source(*(f"#include {target}" for target in targets))


def long_function(lines, head="int f()"):
    return source(head + " {", *["  g();"] * (lines - 2), "}")


# Rule, file, text, line.
LAYERING = (
    ("layering", "profiler/trace/a.cpp", include('"trainer/program/answer.h"'), 2),
    ("layering", "trainer/run/a.cpp", include('"baselines/store/answer.h"'), 2),
    ("layering", "trainer/run/a.cpp", include('"analysis/stats/answer.h"'), 2),
    ("layering", "baselines/store/a.cpp", include('"trainer/program/answer.h"'), 2),
    ("layering", "baselines/store/a.cpp", include('"analysis/stats/answer.h"'), 2),
    ("layering", "analysis/gate/a.cpp", include('"trainer/execute/answer.h"'), 2),
    ("layering", "analysis/gate/a.cpp", include('"viewer/panels/answer.h"'), 2),
    ("layering", "viewer/panels/a.cpp", include('"trainer/program/answer.h"'), 2),
    ("layering", "viewer/panels/a.cpp", include('"suites/runner/answer.h"'), 2),
    ("layering", "suites/cli/a.cpp", include('"viewer/panels/answer.h"'), 2),
    ("layering", "analysis/gate/a_test.cpp", include('"trainer/execute/answer.h"'), 2),
    ("include-path", "profiler/trace/a.cpp", include('"answer.h"'), 2),
    ("include-path", "profiler/trace/a.cpp", include('"profiler/trace/absent.h"'), 2),
    ("include-path", "profiler/trace/a.cpp", include("<profiler/trace/answer.h>"), 2),
    ("include-path", "profiler/trace/a.cpp", include('"profiler/trace/b.cpp"'), 2),
    ("foreign-header", "trainer/ops/cpu/a.cpp", include("<cuda_runtime.h>"), 2),
    ("foreign-header", "trainer/ops/cpu/a.cpp", include("<vector>", "<cublasLt.h>"), 3),
    ("foreign-header", "trainer/comm/local/a.cpp", include("<nccl.h>"), 2),
    ("foreign-header", "profiler/ranges/a.cpp", include("<nvtx3/nvtx3.hpp>"), 2),
    ("foreign-header", "profiler/capture/a.cpp", include("<cupti.h>"), 2),
    ("foreign-header", "profiler/host/a.cpp", include("<nvml.h>"), 2),
    ("foreign-header", "trainer/ops/a.cpp", include("<cudnn_frontend.h>"), 2),
    ("foreign-header", "analysis/stats/a.cpp", include("<sqlite3.h>"), 2),
    ("foreign-header", "baselines/store/a.h", include("<sqlite3.h>"), 2),
    ("foreign-header", "suites/runner/a.cpp", include("<CLI/CLI.hpp>"), 2),
    ("foreign-header", "suites/cli/a.cpp", include("<toml++/toml.h>"), 2),
    ("foreign-header", "suites/cli/a.cpp", include("<imgui.h>"), 2),
    ("foreign-header", "suites/cli/a.cpp", include("<GLFW/glfw3.h>"), 2),
    ("foreign-header", "profiler/trace/a.h", include("<nlohmann/json.hpp>"), 2),
    ("foreign-header", "profiler/trace/a.h", include("<rapidjson/reader.h>"), 2),
    ("foreign-header", "profiler/base/a.h", include("<xxhash.h>"), 2),
    ("foreign-header", "trainer/comm/local/a.cpp", include("<mpi.h>"), 2),
    ("foreign-header", "profiler/base/a.cpp", include("<gtest/gtest.h>"), 2),
    ("foreign-header", "trainer/ops/a.cpp", include("<benchmark/benchmark.h>"), 2),
    ("environment", "suites/cli/a.cpp", source('auto home = std::getenv("HOME");'), 2),
    ("environment", "profiler/base/a.cpp", source("extern char** environ;"), 2),
)

TIDY = (
    ("file-size", "profiler/trace/a.cpp", source(*["int a;"] * 800), 801),
    ("function-size", "profiler/trace/a.cpp", long_function(71), 2),
    ("function-size", "profiler/trace/a_test.cpp", long_function(71, "TEST(Trace, Reads)"), 2),
    ("line-length", "profiler/trace/a.cpp", source("// " + "word " * 24 + "."), 2),
    ("line-length", "ci/check.py", '"""What this does."""\n' + "a = " + "1 + " * 30 + "1\n", 2),
    ("first-line", "profiler/trace/a.cpp", "#include <vector>\n", 1),
    ("first-line", "profiler/trace/a.h", "// a.h\n#pragma once\n", 1),
    ("first-line", "ci/tool", "#!/bin/sh\nset -e\n", 1),
    ("first-line", "ci/tool.py", "import os\n", 1),
    ("empty-name", "profiler/trace/trace_utils.cpp", source("int a;"), 1),
    ("empty-name", "profiler/common/a.cpp", source("int a;"), 1),
    ("empty-name", "profiler/trace/a.cpp", source("class RunManager {};"), 2),
    ("empty-name", "profiler/trace/a.cpp", source("using TraceHelper = int;"), 2),
    ("type-name", "profiler/trace/a.cpp", source("struct trace_row {};"), 2),
    ("pragma-once", "profiler/trace/a.h", source("int a();"), 1),
    ("using-namespace", "profiler/trace/a.h", source("#pragma once", "using namespace std;"), 3),
    ("namespace", "profiler/trace/a.cpp", source("namespace mbb::trainer {", "}"), 2),
    ("namespace", "trainer/run/a.cpp", source("namespace mbb {", "}"), 2),
    ("macro", "profiler/trace/a.h", source("#pragma once", "#define TWICE(x) ((x) + (x))"), 3),
    ("macro", "profiler/trace/a.h", source("#pragma once", *(f"#define MB_M{i} {i}" for i in range(7))), 9),
    ("unseen-status", "trainer/ops/cuda/a.cu", source("void f() {", "  cudaMemsetAsync(p, 0, 4, s);", "}"), 3),
    ("unseen-status", "trainer/ops/cuda/a.cpp", source("void f() {", "  if (p)", "    cublasLtMatmul(h);", "}"), 4),
    ("unseen-status", "trainer/comm/nccl/a.cpp", source("void f() {", "  g(); ncclGroupEnd();", "}"), 3),
    ("unseen-launch", "trainer/ops/cuda/a.cu", source("void f() {", "  kernel<<<1, 1, 0, s>>>(p);", "}"), 2),
    ("banned", "trainer/data/a.cpp", source("int a = std::rand();"), 2),
    ("banned", "trainer/data/a.cpp", source("std::random_device seed;"), 2),
    ("banned", "trainer/data/a.cpp", source("auto seed = std::time(nullptr);"), 2),
    ("banned", "trainer/data/a.cpp", source("gets(line);"), 2),
    ("banned", "trainer/data/a.cpp", source('sprintf(line, "%d", 1);'), 2),
    ("banned", "trainer/data/a.cpp", source("strcpy(to, from);"), 2),
    ("banned", "trainer/data/a.cpp", source("int n = atoi(text);"), 2),
    ("banned", "suites/runner/a.cpp", source('std::system("ls");'), 2),
    ("banned", "suites/runner/a.cpp", source('popen("ls", "r");'), 2),
    ("banned", "analysis/report/a.cpp", source("std::cout << 1;"), 2),
    ("banned", "analysis/report/a.cpp", source("throw 1;"), 2),
    ("banned", "analysis/report/a.cpp", source("std::rethrow_exception(e);"), 2),
    ("banned", "suites/runner/a.cpp", source("thread.detach();"), 2),
    ("unfinished", "profiler/trace/a.cpp", source("int a;  // TO" "DO: more"), 2),
    ("unfinished", "suites/specs/a.toml", "# FIX" "ME\n", 1),
    ("registry-address", "README.md", "from https://py" "pi.org/simple\n", 1),
    ("machine-path", "README.md", "a line\ncd /ho" "me/someone/mbbench\n", 2),
    ("machine-path", "profiler/trace/a.cpp", source('auto data = "/wo' 'rk/data";'), 2),
    ("author", "profiler/trace/a.cpp", source("// Auth" "or: someone"), 2),
    ("decoration", "profiler/trace/a.cpp", source("// " + "-" * 20), 2),
    ("trailing-space", "profiler/trace/a.cpp", source("int a; "), 2),
)

FORMAT = (
    ("format", "profiler/trace/a.cpp", source("int  a;"), 2),
    ("format", "trainer/ops/cuda/a.cu", source("", "int a() {", "    return 1;", "}"), 3),
)

BY_CHECK = ((layering, LAYERING), (tidy, TIDY), (format_check, FORMAT))
PLANTED = [(check, *row) for check, rows in BY_CHECK for row in rows]

# The same words where they are allowed, in comments, or in text.
ALLOWED = (
    ("trainer/ops/cuda/a.cu", include("<cuda_runtime.h>", "<cublasLt.h>")),
    ("trainer/comm/nccl/a.cpp", include("<nccl.h>")),
    ("baselines/store/a.cpp", include("<sqlite3.h>")),
    ("profiler/trace/readers/a.cpp", include("<sqlite3.h>")),
    ("suites/cli/a.cpp", include("<CLI/CLI.hpp>")),
    ("suites/matrix/a.cpp", include("<toml++/toml.h>")),
    ("analysis/gate/a.cpp", include('"trainer/program/answer.h"', '"trainer/models/answer.h"')),
    ("suites/cli/a.cpp", include('"analysis/stats/answer.h"', '"trainer/execute/answer.h"')),
    ("profiler/base/env.cpp", source('const char* value = std::getenv("HOME");')),
    ("profiler/trace/a.cpp", source("// std::rand() and getenv", 'const char* a = "std::rand(); getenv";')),
    ("profiler/trace/a.cpp", source('const char* a = R"(', "namespace mbb { throw }", ')";', "int b = 1'000'000;")),
    ("profiler/trace/a.cpp", source("double start_time(int a);", "double b = start_time(0) + clock.time(0);")),
    ("profiler/trace/a.cpp", long_function(70)),
    ("profiler/trace/a_test.cpp", source('const char* golden = R"(', "column " * 20 + ".", ')";')),
    ("profiler/trace/a.cpp", source("const int kTable[] = {", *["    1,"] * 90, "};")),
    ("suites/matrix/a_test.cpp", source('auto home = "/ho' 'me/someone";')),
    ("profiler/trace/a_test.cpp", source('int status = std::system("ls");')),
    ("trainer/ops/cuda/a.cpp", source("Status f() {", "  MB_TRY(ok(", "      cudaMemcpy(a, b, 4, kind)));", "}")),
    ("trainer/ops/cuda/a.cu", source("Status f() {", "  kernel<<<1, 1, 0, s>>>(p);", '  return launched("a");', "}")),
    ("trainer/ops/cuda/a.cpp", source("F::~F() {", "  (void)cudaStreamSynchronize(s);", "  cudaFree(p);", "}")),
)
