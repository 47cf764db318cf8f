"""Finds functions in C++ code and how many lines each takes, by braces; lambdas count with what is around them."""

import re
from typing import NamedTuple


class Function(NamedTuple):
    """Where a function's head begins, its name, and its lines from head to closing brace."""

    line: int
    name: str
    length: int


SCOPE = re.compile(r'^(inline\s+)?namespace\b|^extern\s*""|^(template\s*<.*>\s*)?(class|struct|union|enum)\b',
                   re.DOTALL)
MEMBER_INITIALIZERS = re.compile(r"\)\s*(noexcept\s*(\(.*?\))?\s*)?:(?!:)", re.DOTALL)
ATTRIBUTE = re.compile(r"\[\[.*?\]\]", re.DOTALL)


def strip_directives(code):
    """The lines with preprocessor directives, continued ones included, emptied."""
    lines, continued = [], False
    for line in code:
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        lines.append("" if directive else line)
    return lines


def kind_of_brace(head):
    """What a brace at declaration level opens, from the text before it: scope, function or values."""
    head = ATTRIBUTE.sub("", head).strip()
    head = re.sub(r"^(public|private|protected)\s*:\s*", "", head)
    if "(" in head and MEMBER_INITIALIZERS.search(head) and not head.endswith((")", "}", ",")):
        return "values"
    if SCOPE.match(head) and not (head.endswith(")") or re.search(r"\)\s*(const|noexcept|override|->.*)\s*$", head)):
        return "scope"
    before_call = head.split("(")[0]
    if "(" in head and not re.search(r"(?<![=!<>])=(?!=)", re.sub(r"operator\s*\S+", "", before_call)):
        return "function"
    return "values"


def name_of(head):
    head = ATTRIBUTE.sub("", head)
    match = re.search(r"([~\w:]+|operator\s*\S+?)\s*\(\s*([\w, ]*)", head)
    if match is None:
        return "?"
    return f"{match.group(1)}({match.group(2)})" if match.group(1).startswith("TEST") else match.group(1)


def functions(code):
    """Every function of the blanked lines `code`."""
    text = "\n".join(strip_directives(code))
    found, stack, head_start = [], [], 0
    line, lines_at = 1, []
    for position, character in enumerate(text):
        lines_at.append(line)
        if character == "\n":
            line += 1
        declaring = not stack or stack[-1][0] == "scope"
        if character == "{":
            head = text[head_start:position] if declaring else ""
            kind = kind_of_brace(head) if declaring else "inner"
            stack.append((kind, head_start, head))
            if kind == "scope":
                head_start = position + 1
        elif character == "}" and stack:
            kind, start, head = stack.pop()
            if kind == "function":
                first = lines_at[start + len(head) - len(head.lstrip())]
                found.append(Function(first, name_of(head), line - first + 1))
            if kind in ("function", "scope"):
                head_start = position + 1
        elif character == ";" and declaring:
            head_start = position + 1
    return found
