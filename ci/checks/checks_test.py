"""Plants every violation in a small clean tree and sees it found: a check that cannot fail is a defect."""

import os
import re
import shutil
import sys
import tempfile
import unittest

import format as format_check
import layering
import tidy
from functions import functions
from planted import ALLOWED, PLANTED, include
from sources import blank

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKS = (layering, tidy, format_check)

HEADER = """// A header with a purpose.
#pragma once

namespace mbb::{wing} {{

int answer();

}}  // namespace mbb::{wing}
"""
ROOMS = ("profiler/trace", "trainer/program", "trainer/models", "trainer/execute", "baselines/store", "analysis/stats",
         "suites/runner", "viewer/panels")
CLEAN = {f"{room}/answer.h": HEADER.format(wing=room.split("/", maxsplit=1)[0]) for room in ROOMS}


class Tree:
    """A temporary tree with the clean files and those given."""

    def __init__(self, files):
        self.files = {**CLEAN, **files}

    def __enter__(self):
        self.root = tempfile.mkdtemp(prefix="mbbench-checks-")
        shutil.copy(os.path.join(HERE, "..", "..", ".clang-format"), self.root)
        for path, text in self.files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as handle:
                handle.write(text)
        return self.root

    def __exit__(self, *_):
        shutil.rmtree(self.root)


class Planted(unittest.TestCase):
    """Each rule finds what breaks it, at its place, and says what to do."""

    def test_clean_tree_has_no_finding(self):
        with Tree({}) as root:
            for check in CHECKS:
                self.assertEqual([], check.check(root))

    def test_every_planted_violation_is_found(self):
        for check, rule, path, text, line in PLANTED:
            with self.subTest(rule=rule, path=path, text=text[:200]), Tree({path: text}) as root:
                found = [finding for finding in check.check(root) if (finding.path, finding.line) == (path, line)]
                self.assertIn(rule, [finding.rule for finding in found])
                self.assertTrue(all(finding.remedy for finding in found))

    def test_allowed_code_is_not_reported(self):
        for path, text in ALLOWED:
            with self.subTest(path=path, text=text[:200]), Tree({path: text}) as root:
                self.assertEqual([], [str(finding) for finding in layering.check(root) + tidy.check(root)])

    def test_every_rule_has_a_planted_violation(self):
        planted = {rule for _, rule, _, _, _ in PLANTED} | {"include-circle"}
        for check in CHECKS:
            with open(check.__file__, encoding="utf-8") as handle:
                names = set(re.findall(r'Finding\(.*?, "([a-z-]+)",|[A-Z], "([a-z-]+)", "', handle.read()))
            self.assertTrue(names)
            self.assertEqual(set(), {"".join(name) for name in names} - planted)

    def test_every_banned_call_and_foreign_header_is_planted(self):
        banned = [text for _, rule, _, text, _ in PLANTED if rule == "banned"]
        foreign = [text for _, rule, _, text, _ in PLANTED if rule == "foreign-header"]
        for pattern, *_ in tidy.BANNED:
            self.assertTrue(any(re.search(pattern, text) for text in banned), pattern)
        for pattern, *_ in layering.FOREIGN:
            self.assertTrue(any(re.search("<" + pattern, text) for text in foreign), pattern)

    def test_analysis_reaches_no_executor_through_a_header(self):
        program = include('"trainer/execute/answer.h"').replace("\n", "\n#pragma once\n", 1)
        files = {"trainer/program/step.h": program, "analysis/gate/a.cpp": include('"trainer/program/step.h"')}
        with Tree(files) as root:
            self.assertEqual(["analysis/gate/a.cpp"], [finding.path for finding in layering.check(root)])

    def test_circle_of_headers_is_found(self):
        a, b = "profiler/trace/a.h", "profiler/trace/b.h"
        with Tree({a: include(f'"{b}"'), b: include(f'"{a}"')}) as root:
            self.assertEqual({"include-circle"}, {finding.rule for finding in layering.check(root)})


class Reading(unittest.TestCase):
    """The reader of C++ behind the rules."""

    def names(self, text):
        return [(function.name, function.length) for function in functions(blank(text).split("\n"))]

    def test_functions_of_every_form(self):
        self.assertEqual([("f", 1)], self.names("namespace a { int f() { return 1; } }"))
        self.assertEqual([("A::A", 3)], self.names("A::A(int b) : b_{b}, c_(b) {\n  g();\n}"))
        self.assertEqual([("f", 2)], self.names("template <class T>\nauto f(T a) -> int { if (a) { g(); } return 1; }"))
        self.assertEqual([("f", 1)], self.names("struct A : B { int x{0}; int f() const { return x; } };"))
        self.assertEqual([("TEST(A, B)", 2)], self.names("TEST(A, B) {\n}"))
        self.assertEqual([("f", 2)], self.names("struct P f(int a = 3) {\n}"))
        self.assertEqual([], self.names("const auto kTable = std::map<int, int>{{1, 2}, {3, 4}};"))
        self.assertEqual([("f", 1), ("g", 1)], self.names('void f() { a("{"); }\n#define X {\nvoid g() { b("{"); }'))

    def test_blank_keeps_lines(self):
        text = 'a; /* b\nc */ d; // e\nR"x(\n")x" f;'
        self.assertEqual(["a; ", " d; ", '""', " f;"], blank(text).split("\n"))


if __name__ == "__main__":
    sys.exit(unittest.main())
