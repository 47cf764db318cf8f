"""Includes point one way: reports arrows that run back up and foreign headers out of their rooms."""

import re
import sys

from sources import Finding, load_all, report

# What each wing may include; "wing/room" allows that room only. Nobody includes suites.
ARROWS = {
    "profiler": ("profiler",),
    "trainer": ("trainer", "profiler"),
    "baselines": ("baselines", "profiler"),
    "analysis": ("analysis", "baselines", "profiler", "trainer/program", "trainer/models"),
    "viewer": ("viewer", "analysis", "baselines", "profiler"),
    "suites": ("suites", "analysis", "baselines", "trainer", "profiler"),
}

# What runs a program: analysis must not reach it through other headers either.
EXECUTORS = ("trainer/execute/", "trainer/comm/", "trainer/ops/", "trainer/run/")

# Header pattern, where it may stand, the place in words.
FOREIGN = (
    (r"(cuda|cublas|cudnn|cupti|nvml|nccl|nvtx3/|cub/|cutlass/|cute/|thrust/|cooperative_groups|nvrtc)",
     r"/(cuda|nccl|cupti)/", "folders named cuda, nccl or cupti"),
    (r"sqlite3", r"^(baselines/store|profiler/trace/readers)/.*\.cpp$",
     ".cpp files of baselines/store and profiler/trace/readers"),
    (r"CLI/", r"^(suites/cli|viewer/app)/.*\.cpp$", ".cpp files of suites/cli and viewer/app"),
    (r"toml(\+\+|plusplus)?[/.]", r"^suites/matrix/.*\.cpp$", ".cpp files of suites/matrix"),
    (r"(imgui|GLFW/|GL/|GLES|EGL/|png\.h)", r"^viewer/", "viewer"),
    (r"nlohmann/", r"\.cpp$", ".cpp files"),
    (r"(rapidjson/|simdjson)", r"\.cpp$", ".cpp files"),
    (r"(zlib\.h|zstd|xxhash)", r"\.cpp$", ".cpp files"),
    (r"mpi\.h", r"/mpi/.*\.cpp$", ".cpp files of folders named mpi"),
    (r"(gtest|gmock)/", r"_test\.(cpp|cu|h)$", "tests (*_test.cpp, *_test.h)"),
    (r"benchmark/", r"(_bench\.cpp$|^suites/micro/)", "*_bench.cpp and suites/micro"),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
GETENV = re.compile(r"\b(getenv|secure_getenv|environ)\b")
ENVIRONMENT_ROOM = "profiler/base/env.cpp"


def includes(source):
    """(line, quote, path) of every #include."""
    for number, line in enumerate(source.code, 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def wing_of(path):
    return path.split("/")[0]


def allowed(wing, target):
    return any(target == room or target.startswith(room + "/") for room in ARROWS[wing])


def check_arrows(source, known):
    """Own headers: by full path from the root, in quotes, along the arrows."""
    wing = wing_of(source.path)
    for number, quote, target in includes(source):
        ours = wing_of(target) in ARROWS and "/" in target
        if quote == '"' and not ours:
            yield Finding(source.path, number, "include-path", f'"{target}" does not start at the root',
                          'write own headers as "wing/room/file.h" and foreign ones in <>')
        elif quote == "<" and ours:
            yield Finding(source.path, number, "include-path", f"<{target}> is our own header", "write it in quotes")
        elif ours and target.endswith((".cpp", ".cu")):
            yield Finding(source.path, number, "include-path", f'"{target}" is not a header', "include its header")
        elif ours and target not in known:
            yield Finding(source.path, number, "include-path", f'"{target}" is not in the tree', "correct the path")
        elif ours and wing in ARROWS and not allowed(wing, target):
            yield Finding(source.path, number, "layering", f'{wing} may not include "{target}"',
                          f"it may include {', '.join(ARROWS[wing])}; move the code, or pass what it needs in")
        elif ours and re.search(r"_test\.h$", target) and not source.is_test:
            yield Finding(source.path, number, "layering", f'product code includes "{target}", which is for tests',
                          "move what both need out of the test header")


def check_foreign(source):
    """Foreign headers and the environment stop at the rooms named for them."""
    for number, _, target in includes(source):
        for pattern, place, words in FOREIGN:
            if re.match(pattern, target) and not re.search(place, source.path):
                yield Finding(source.path, number, "foreign-header", f"<{target}> is for {words} only",
                              "use the front door of the room that owns it")
    if source.path == ENVIRONMENT_ROOM or source.is_test:
        return
    for number, line in enumerate(source.code, 1):
        match = GETENV.search(line)
        if match:
            yield Finding(source.path, number, "environment", f"{match.group(1)} outside {ENVIRONMENT_ROOM}",
                          "declare a knob, or call profiler/base/env.h")


def check_reach(sources):
    """Follows headers: no circles, and no way from analysis to an executor."""
    edges = {s.path: [(line, target) for line, quote, target in includes(s) if quote == '"'] for s in sources}
    yield from circles(edges)
    for source in sources:
        if wing_of(source.path) != "analysis":
            continue
        for number, target in edges[source.path]:
            reached = reachable(target, edges)
            bad = sorted(path for path in reached if path.startswith(EXECUTORS))
            if bad and not target.startswith(EXECUTORS):
                yield Finding(source.path, number, "layering", f'"{target}" leads to "{bad[0]}"',
                              "analysis never depends on what executes; split that header")


def reachable(start, edges):
    seen, waiting = set(), [start]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [target for _, target in edges.get(path, ())]
    return seen


def circles(edges):
    for path, targets in edges.items():
        for number, target in targets:
            if path in reachable(target, edges):
                yield Finding(path, number, "include-circle", f'"{target}" leads back to this file',
                              "declare the type forward, or split the header")


def check(root):
    """All findings of the tree."""
    sources = [source for source in load_all(root) if source.is_cpp]
    known = {source.path for source in sources}
    findings = []
    for source in sources:
        findings += check_arrows(source, known)
        findings += check_foreign(source)
    return findings + list(check_reach(sources))


if __name__ == "__main__":
    sys.exit(report("layering", check(sys.argv[1])))
