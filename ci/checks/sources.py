"""What every check shares: the files of the tree, their code without comments and text, and how a finding is told."""

import os
import re
import subprocess
from typing import NamedTuple

CPP = (".h", ".cpp", ".cu", ".cuh")
NOT_OURS = (".", "build", "__pycache__", "mbbench-runs")
WINGS = ("profiler", "trainer", "baselines", "analysis", "suites", "viewer", "ci")


class Finding(NamedTuple):
    """A broken rule: where, which, what was seen, what to do."""

    path: str
    line: int
    rule: str
    seen: str
    remedy: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.seen}; {self.remedy}"


class Source(NamedTuple):
    """A file: its path under the root, its lines, and the same lines with comments and literals blanked (C++ only)."""

    path: str
    lines: list
    code: list

    @property
    def is_cpp(self):
        return self.path.endswith(CPP)

    @property
    def is_header(self):
        return self.path.endswith((".h", ".cuh"))

    @property
    def is_test(self):
        return bool(re.search(r"_test\.(cpp|cu|h)$", self.path))


def tree_files(root):
    """Paths that git tracks or would add; in a folder without git, every file outside build and dot folders."""
    if os.path.exists(os.path.join(root, ".git")):
        command = ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "-c", "-o", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
        return sorted({path for path in listed if path and os.path.isfile(os.path.join(root, path))})
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(NOT_OURS)]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def load(root, path):
    """The file as a Source, or None for what is not text."""
    with open(os.path.join(root, path), "rb") as handle:
        raw = handle.read()
    if b"\0" in raw[:8192]:
        return None
    text = raw.decode("utf-8", errors="replace")
    code = blank(text).split("\n") if path.endswith(CPP) else []
    return Source(path, text.split("\n"), code)


def load_all(root):
    """Every text file of the tree."""
    return [source for source in (load(root, path) for path in tree_files(root)) if source is not None]


TOKENS = re.compile(
    r'(?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?(?:\*/|\Z))'
    r'|(?P<raw>\b(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")'
    r'|(?P<include>^[ \t]*#[ \t]*include[^\n]*)'
    r'|(?P<number>\b\d(?:\'?[\w.])*)'
    r'|(?P<string>"(?:[^"\\\n]|\\.|\\\n)*")'
    r"|(?P<character>'(?:[^'\\\n]|\\.)+')",
    re.DOTALL | re.MULTILINE,
)


def blank(text):
    """The text with comments emptied and literals reduced to quotes, line breaks kept; include lines stay."""

    def replace(match):
        kind = match.lastgroup if match.lastgroup != "delimiter" else "raw"
        if kind in ("include", "number"):
            return match.group()
        breaks = "\n" * match.group().count("\n")
        return {"comment": "", "character": "' '"}.get(kind, '""') + breaks

    return TOKENS.sub(replace, text)


def raw_text_lines(text):
    """Numbers of the lines that lie in raw strings: text shown as it is, which nobody can break."""
    lines = set()
    for match in TOKENS.finditer(text):
        if match.group("raw"):
            first = text.count("\n", 0, match.start()) + 1
            lines.update(range(first, first + match.group().count("\n") + 1))
    return lines


def report(name, findings):
    """Prints the findings and returns the exit status."""
    for finding in findings:
        print(finding)
    print(f"{name}: {len(findings)} broken rules" if findings else f"{name}: ok")
    return 1 if findings else 0
