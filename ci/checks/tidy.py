"""The rules of style that a program can see: sizes, names, first lines, macros, banned calls, unwanted words."""

import re
import sys

from functions import functions
from sources import Finding, WINGS, load_all, raw_text_lines, report

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120
MAX_MACROS = 6

SCRIPT = re.compile(r"(\.(py|sh|cmake)|^ci/(\w+/)*\w+|/CMakeLists\.txt|^CMakeLists\.txt)$")
PROSE = re.compile(r"\.(md|toml|yml|yaml)$")
EMPTY_NAMES = re.compile(r"(?i)^(utils?|helpers?|common|misc|managers?)$")
TYPE = re.compile(r"\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\(\w+\)\s*)?(\w+)\s*"
                  r"(?:final\s*)?[:{](?!:)"
                  r"|\busing\s+(\w+)\s*=|^\s*concept\s+(\w+)")

# Switches of foreign libraries that a source file may set before including them.
FOREIGN_SWITCH = re.compile(r"^(FMT_|GLFW_INCLUDE_|IMGUI_|IM_|TOML_|RAPIDJSON_|XXH_|ZSTD_|JSON_|CLI11_|_GNU_SOURCE$)")

# Banned words of code: pattern, the name to show, where it is allowed, what to do instead.
TESTS = r"_(test|bench)\.(cpp|h)$"
BANNED = (
    (r"\b(s?rand|random_shuffle)\s*\(", "rand", None, "use the counter-based generator; seeds are knobs"),
    (r"\brandom_device\b", "random_device", TESTS, "use the counter-based generator; seeds are knobs"),
    (r"(?<![\w.>])time\s*\(\s*(nullptr|NULL|0|&)", "time()", None, "use profiler/base/clock.h"),
    (r"(?<![\w.>])gets\s*\(", "gets", None, "read lines with a limit"),
    (r"\bv?sprintf\s*\(", "sprintf", None, "use fmt::format"),
    (r"\b(strcpy|strcat|strtok)\s*\(", "unbounded C string calls", None, "use std::string and std::string_view"),
    (r"\bato[ifl]l?\s*\(", "atoi and kin", None, "use profiler/base/text.h: a wrong number must be an error"),
    (r"(?<![\w.>])system\s*\(", "system()", TESTS, "start processes through suites/runner"),
    (r"(?<![\w.>])popen\s*\(", "popen()", TESTS, "start processes through suites/runner"),
    (r"\bstd::(cout|cerr|clog)\b", "standard streams in a library", TESTS + r"|^suites/(cli|micro)/|^viewer/app/",
     "return text, or use profiler/base/log.h"),
    (r"\bthrow\b", "throw", TESTS + r"|^suites/cli/", "return Result or Status; no exception crosses a wing"),
    (r"\brethrow_exception\b", "rethrow_exception", TESTS, "return Result or Status"),
    (r"\.detach\s*\(\s*\)", "detached threads", None, "join what you start"),
)

# A call whose status nobody looks at, as a statement of its own. What gives memory and handles back may fail unseen.
UNSEEN_STATUS = re.compile(r"(?:[;{}]|(?<!\(void)\)|\belse|\A)\s*((?:cuda|cublasLt|cudnn|cupti|nccl)[A-Z]\w*)\s*\(")
# A kernel's launch, and what reads whether it went.
LAUNCH = re.compile(r"<<<")
LOOKS = re.compile(r"\blaunched\s*\(|\breturn\s+(by_element|over_rows)\s*\(")
GIVES_BACK = re.compile(r"(Destroy|Free|FreeHost|CloseMemHandle|GetLastError)$")

# Patterns are written so that they do not match their own text here.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")
REGISTRY = re.compile(r"(?i)\b((deb|security|snapshot|ftp)[.]debian[.]org|pypi[.]org|pythonhosted[.]org|"
                      r"npmjs[.](org|com)|crates[.]io|rubygems[.]org|proxy[.]golang[.]org|nodesource[.]com|"
                      r"conda[.]anaconda[.]org|packages[.]cloud[.]google[.]com|repo1?[.]maven[.](apache[.]org|org))\b")
MACHINE_PATH = re.compile(r"(?<![\w.}$])/(work|home|root|Users)/[\w.]")
SHARED_PATH = re.compile(r"(?<![\w.}$])/(work|scratch)/[\w.]")  # all that tests must avoid: they invent homes
AUTHOR = re.compile(r"(?i)(@[a]uthor\b|//\s*authors?:|copyright \(c\))")
DECORATION = re.compile(r"^\s*(//|#)\s*[-=*~#/+]{4,}")


def check_size(source):
    """Lines of a file, of a function, of a line's columns."""
    if not (source.is_cpp or SCRIPT.search(source.path)):
        return
    length = len(source.lines) - (source.lines[-1] == "")
    if length > MAX_FILE_LINES:
        yield Finding(source.path, length, "file-size", f"{length} lines, the limit is {MAX_FILE_LINES}",
                      "split it by what it does")
    shown = raw_text_lines("\n".join(source.lines)) if source.is_cpp else ()
    for number, line in enumerate(source.lines, 1):
        if len(line) > MAX_COLUMNS and number not in shown:
            yield Finding(source.path, number, "line-length", f"{len(line)} columns, the limit is {MAX_COLUMNS}",
                          "break the line")
    for function in functions(source.code):
        if function.length > MAX_FUNCTION_LINES:
            yield Finding(source.path, function.line, "function-size",
                          f"{function.name} takes {function.length} lines, the limit is {MAX_FUNCTION_LINES}",
                          "name its parts and make them functions")


def check_opening(source):
    """The first line is one sentence of purpose."""
    if source.is_cpp:
        first = re.match(r"^// (.*)$", source.lines[0])
    elif source.path.endswith(".py"):
        first = re.match(r'^(?:# |""")(.*)$', source.lines[0])
    elif source.lines[0].startswith("#!"):
        first = re.match(r"^# (.*)$", source.lines[1] if len(source.lines) > 1 else "")
    elif source.path.endswith(".cmake"):
        first = re.match(r"^# (.*)$", source.lines[0])
    else:
        return
    if first is None or len(first.group(1).split()) < 3:
        yield Finding(source.path, 1, "first-line", "no sentence of purpose",
                      "open with a comment that says what the file is for")


def check_names(source):
    """Names that say nothing, of files, folders and types; types in PascalCase."""
    for part in re.split(r"[/._-]", source.path):
        if EMPTY_NAMES.match(part):
            yield Finding(source.path, 1, "empty-name", f'"{part}" in the path says nothing', "name it by what it does")
    for number, line in enumerate(source.code, 1):
        for match in TYPE.finditer(line):
            name = next(group for group in match.groups() if group)
            for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
                if EMPTY_NAMES.match(word):
                    yield Finding(source.path, number, "empty-name", f'"{word}" in {name} says nothing',
                                  "name the type by what it is")
            if match.group(1) and not re.match(r"^[A-Z][A-Za-z0-9]*$", name):
                yield Finding(source.path, number, "type-name", f"type {name}", "types are PascalCase")


def check_header(source):
    """Headers are guarded, and open no namespace to their readers."""
    if not source.is_header:
        return
    if not any(re.match(r"^#pragma once\s*$", line) for line in source.code):
        yield Finding(source.path, 1, "pragma-once", "no #pragma once", "add it after the opening comment")
    for number, line in enumerate(source.code, 1):
        if re.search(r"\busing\s+namespace\b", line):
            yield Finding(source.path, number, "using-namespace", "using namespace in a header", "name what is used")


def check_namespace(source):
    """A wing's code lives in its namespace; bare mbb is for profiler/base."""
    wing = source.path.split("/")[0]
    if wing not in WINGS or wing == "ci":
        return
    for number, line in enumerate(source.code, 1):
        match = re.match(r"^\s*(?:inline\s+)?namespace\s+mbb(?:::(\w+))?[\w:]*\s*\{", line)
        if match is None or (source.path.startswith("profiler/base/") and match.group(1) is None):
            continue
        if match.group(1) != wing:
            yield Finding(source.path, number, "namespace", f"opens {match.group(0).split()[1]}",
                          f"code of this wing lives in mbb::{wing}")


def check_banned(source):
    """Calls and words that the project does without."""
    for number, line in enumerate(source.code, 1):
        for pattern, name, place, remedy in BANNED:
            if re.search(pattern, line) and not (place and re.search(place, source.path)):
                yield Finding(source.path, number, "banned", name, remedy)


def check_statuses(source):
    """Every call of a CUDA library has its status looked at, or (void) says that it is not."""
    if not source.is_cpp:
        return
    code = "\n".join(source.code)
    for match in UNSEEN_STATUS.finditer(code):
        if not GIVES_BACK.search(match.group(1)):
            yield Finding(source.path, code.count("\n", 0, match.start(1)) + 1, "unseen-status", match.group(1),
                          "say what it was for: MB_TRY(ok(call, doing))")


def check_launches(source):
    """Who launches a kernel asks whether it went, by the kernel's name: the next launch would be blamed for it."""
    if not source.path.endswith((".cu", ".cuh")):
        return
    for function in functions(source.code):
        body = source.code[function.line - 1:function.line - 1 + function.length]
        if any(LAUNCH.search(line) for line in body) and not any(LOOKS.search(line) for line in body):
            yield Finding(source.path, function.line, "unseen-launch", function.name,
                          'return launched("kernel") from where it is launched')


def check_macros(sources):
    """Macros are MB_*, few, or a foreign library's switch in a source file."""
    ours = {}
    for source in sources:
        for number, line in enumerate(source.code, 1):
            match = re.match(r"^\s*#\s*define\s+(\w+)", line)
            if match is None or (FOREIGN_SWITCH.match(match.group(1)) and not source.is_header):
                continue
            if match.group(1).startswith("MB_"):
                ours.setdefault(match.group(1), (source.path, number))
            else:
                yield Finding(source.path, number, "macro", f"defines {match.group(1)}",
                              "write a function, a constant or a template; macros are MB_* only")
    for name, (path, number) in list(ours.items())[MAX_MACROS:]:
        yield Finding(path, number, "macro", f"{name} is macro number {len(ours)}, the limit is {MAX_MACROS}",
                      "write a function or a template")


def check_text(source):
    """What no file of ours says: unfinished work, addresses of registries, paths of one machine, authors, rulers."""
    ours = source.is_cpp or SCRIPT.search(source.path) or PROSE.search(source.path)
    rules = [(UNFINISHED, "unfinished", "finish it, or leave it out"),
             (REGISTRY, "registry-address", "name the package, not where it is fetched"),
             (SHARED_PATH if source.is_test else MACHINE_PATH, "machine-path", "use a relative path, or a knob"),
             (AUTHOR, "author", "history keeps who wrote what")]
    if not ours or source.path == "LICENSE":
        return
    for number, line in enumerate(source.lines, 1):
        for pattern, rule, remedy in rules:
            match = pattern.search(line)
            if match:
                yield Finding(source.path, number, rule, match.group(0), remedy)
        if not PROSE.search(source.path) and DECORATION.match(line):
            yield Finding(source.path, number, "decoration", "a ruled comment", "let an empty line divide")
        if not PROSE.search(source.path) and line != line.rstrip():
            yield Finding(source.path, number, "trailing-space", "space at the end of the line", "remove it")


def check(root):
    """All findings of the tree."""
    sources = load_all(root)
    findings = list(check_macros([source for source in sources if source.is_cpp]))
    for source in sources:
        for rule in (check_size, check_opening, check_names, check_header, check_namespace, check_banned,
                     check_statuses, check_launches, check_text):
            findings += rule(source)
    return sorted(findings)


if __name__ == "__main__":
    sys.exit(report("tidy", check(sys.argv[1])))
