"""Every C++ file of the tree is as clang-format with the project's .clang-format writes it."""

import re
import shutil
import subprocess
import sys

from sources import CPP, Finding, report, tree_files

REMEDY = "run: clang-format -i FILE"


def check(root):
    """All findings of the tree: the first difference of each file."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if tool is None:
        return [Finding(".clang-format", 1, "format", "clang-format is not installed", "run ci/setup")]
    files = [path for path in tree_files(root) if path.endswith(CPP)]
    findings = {}
    for start in range(0, len(files), 100):
        command = [tool, "--dry-run", "-Werror", "--style=file", *files[start:start + 100]]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        matches = re.findall(r"^(.+?):(\d+):\d+: error: code should be clang-formatted", done.stderr, re.MULTILINE)
        for path, line in matches:
            findings.setdefault(path, Finding(path, int(line), "format", "not as clang-format writes it", REMEDY))
        if done.returncode != 0 and not matches:
            last = done.stderr.strip().split("\n")[-1]
            return [Finding(".clang-format", 1, "format", f"clang-format failed: {last}", "repair its configuration")]
    return list(findings.values())


if __name__ == "__main__":
    sys.exit(report("format", check(sys.argv[1])))
