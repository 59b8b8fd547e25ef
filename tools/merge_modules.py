# ruff: noqa: ARG002, C901, D101, D102, D103, INP001, S603, S607, SIM108, T201
"""Join modules along the table in tools/joined_modules.md: every body stands as it was.

python tools/merge_modules.py check            names that collide, circles and sizes, without writing
python tools/merge_modules.py apply AREA ...   join the modules of some headings of the table
"""

import ast
import builtins
import re
import shutil
import subprocess
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path("tools/joined_modules.md")
PACKAGES = ("isaaclab_arena/", "isaaclab_arena_gr00t/")
TEXTS = ("*.py", "*.md", "*.toml", "*.yaml", "*.yml", "*.txt", "*.json", "Makefile", "*.html", "*.js", "*.pyi")
IN_WORKERS = ("isaaclab_arena/environments/gym/worker/", "isaaclab_arena/policy/lerobot/worker/")
COMMANDS = "isaaclab_arena/cli/command_table.py"
WIDTH = 118


@dataclass
class Row:
    """A module of the table: what it holds, and the modules that it is made of."""

    area: str
    target: str
    title: str
    sources: list[str]


@dataclass
class Part:
    """A module that becomes part of another."""

    path: str
    docstring: str
    lines: list[str]
    imports: list[tuple[str, str, str]] = field(default_factory=list)  # statement's key, bound name, text
    checked: list[tuple[str, str, str]] = field(default_factory=list)
    defined: dict[str, tuple[str, tuple[int, int]]] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def listed(*patterns: str) -> list[str]:
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns], capture_output=True, text=True, check=True
    )
    return [name for name in names.stdout.split("\n") if name and Path(name).is_file()]


def read_table() -> list[Row]:
    """Read the table: lines ``- `target`: title. From `a`, `b`.`` below headings ``### area``."""
    rows, area = [], ""
    text = TABLE.read_text().partition("<!-- files -->")[2].partition("<!-- /files -->")[0]
    for line in text.splitlines():
        if line.startswith("### "):
            area = line.removeprefix("### ").strip("` ")
        elif line.startswith("| `"):
            target, title, sources = (cell.strip() for cell in line.strip("| \n").split(" | "))
            package = "isaaclab_arena_gr00t" if area.startswith("isaaclab_arena_gr00t") else "isaaclab_arena"
            rows.append(
                Row(
                    area,
                    f"{package}/{target.strip('`')}.py",
                    title,
                    [f"{package}/{name.strip('`')}.py" for name in sources.split()],
                )
            )
    return rows


class Merger:
    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.modules = {module_of(path): path for path in listed("*.py") if path.startswith(PACKAGES)}
        self.moved = {module_of(source): module_of(row.target) for row in rows for source in row.sources}
        self.problems: list[str] = []
        for row in rows:
            if module_of(row.target) in self.modules and self.moved.get(
                module_of(row.target), module_of(row.target)
            ) != module_of(row.target):
                self.problems.append(f"{row.target} is a module that moves elsewhere")
            for source in row.sources:
                if not Path(source).is_file():
                    self.problems.append(f"{row.target}: no {source}")
        counts = defaultdict(list)
        for row in rows:
            for source in row.sources:
                counts[source].append(row.target)
        self.problems += [f"{source} stands in {places}" for source, places in counts.items() if len(places) > 1]
        if self.problems:
            sys.exit("\n".join(self.problems))

    @staticmethod
    def absolute(node: ast.ImportFrom, path: str) -> None:
        """Make a relative import absolute, and remember how it was written."""
        if node.level and not hasattr(node, "relative"):
            package = module_of(path).split(".") if path.endswith("__init__.py") else module_of(path).split(".")[:-1]
            node.module = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            node.relative = True  # pyright: ignore[reportAttributeAccessIssue]

    @staticmethod
    def spelled(node: ast.ImportFrom, module: str, path: str) -> str:
        """Return a module's name as an import in ``path`` spells it: relative where the import was."""
        if not hasattr(node, "relative"):
            return module
        package = module_of(path).rpartition(".")[0]
        up = "."
        while module != package and not module.startswith(package + "."):
            package, up = package.rpartition(".")[0], up + "."
        return up + module.removeprefix(package).removeprefix(".")

    def imported(self, node: ast.ImportFrom) -> list[tuple[str, str, str | None, bool]]:
        """Return module, name, alias of each name as they are after the move, and whether it is a module."""
        found = []
        for each in node.names:
            full = f"{node.module}.{each.name}"
            if full in self.modules:
                new = self.moved.get(full, full)
                package, _, leaf = new.rpartition(".")
                alias = each.asname or (each.name if leaf != each.name else None)
                found.append((package, leaf, alias if alias != leaf else None, True))
            else:
                found.append((self.moved.get(node.module, node.module), each.name, each.asname, False))
        return found

    def part(self, path: str, target: str) -> Part:
        text = Path(path).read_text()
        tree, lines = ast.parse(text), text.splitlines()
        part = Part(path, ast.get_docstring(tree) or "", [])
        gone: set[int] = set()

        def take(node: ast.Import | ast.ImportFrom, into: list[tuple[str, str, str]]) -> None:
            if isinstance(node, ast.Import):
                for each in node.names:
                    bound = each.asname or each.name.partition(".")[0]
                    into.append(
                        (
                            f"import {each.name}" if each.asname else f"import {bound}",
                            bound,
                            f"import {each.name}" + (f" as {each.asname}" if each.asname else ""),
                        )
                    )
                return
            self.absolute(node, path)
            for module, name, alias, is_module in self.imported(node):
                if is_module and f"{module}.{name}" == module_of(target):
                    self.problems.append(f"{target}: {path} imports the module {name} as {alias}, which is this one")
                elif module == module_of(target):
                    part.needs.add(node.module or "")
                    if alias and alias != name:
                        self.problems.append(f"{target}: {path} calls {name} {alias}")
                else:
                    noqa = re.search(r"#.*", lines[node.lineno - 1])
                    comment = f"  {noqa[0]}" if noqa else ""
                    into.append(
                        (
                            f"{module}.{name}",
                            alias or name,
                            f"from {self.spelled(node, module, target)} import {name}"
                            + (f" as {alias}" if alias else "")
                            + comment,
                        )
                    )

        for number, node in enumerate(tree.body):
            if (
                number == 0
                and isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                gone.update(range(node.lineno, node.end_lineno + 1))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                gone.update(range(node.lineno, node.end_lineno + 1))
                take(node, part.imports)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                gone.update(range(node.lineno, node.end_lineno + 1))
                for inner in node.body:
                    take(inner, part.checked)
                part.needs -= {inner.module for inner in node.body if isinstance(inner, ast.ImportFrom)}
            else:
                names, end = [], node.end_lineno
                if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                    names = [node.name]
                elif isinstance(node, ast.Assign):
                    names = [
                        each.id for target_ in node.targets for each in ast.walk(target_) if isinstance(each, ast.Name)
                    ]
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names = [node.target.id]
                elif (
                    isinstance(node, ast.If)
                    and "__main__" in ast.dump(node.test)
                    and len(self.row(target).sources) > 1
                    and path != self.row(target).sources[-1]
                ):
                    self.problems.append(f"{target}: {path} is a program and does not stand last")
                start = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
                following = tree.body[number + 1] if number + 1 < len(tree.body) else None
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) and names:
                    end = following.end_lineno
                for name in names:
                    part.defined[name] = (ast.dump(node), (start, end))
        # Within functions, imports of what the module now holds itself go, and others get their new names.
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node not in tree.body and node.lineno not in gone:
                self.absolute(node, path)
                new = self.statement(node, lines, module_of(target), target)
                if new is not None:
                    lines[node.lineno - 1 : node.end_lineno] = [new] + [None] * (node.end_lineno - node.lineno)
        part.lines = [None if number in gone else line for number, line in enumerate(lines, 1)]
        return part

    def row(self, target: str) -> Row:
        return next(row for row in self.rows if row.target == target)

    def statement(self, node: ast.ImportFrom, lines: list[str], home: str, path: str) -> str | None:
        """Return the statement after the move, None if it stays as it is."""
        found = self.imported(node)
        if [(module, name, alias) for module, name, alias, _ in found] == [
            (node.module, each.name, each.asname) for each in node.names
        ]:
            return None
        source = [line for line in lines[node.lineno - 1 : node.end_lineno] if line is not None]
        indent = source[0][: len(source[0]) - len(source[0].lstrip())]
        comment = next((match[0] for line in source if (match := re.search(r"#.*", line))), "")
        by_module: dict[str, list[str]] = defaultdict(list)
        for module, name, alias, is_module in found:
            if module == home and not is_module and home:
                if alias and alias != name:
                    self.problems.append(f"{home}: {name} as {alias} within a function")
                continue
            if is_module and f"{module}.{name}" == home:
                self.problems.append(f"{home}: imports itself within a function")
            by_module[module].append(name + (f" as {alias}" if alias else ""))
        return "\n".join(
            f"{indent}from {self.spelled(node, module, path)} import {', '.join(names)}"
            + (f"  {comment}" if comment else "")
            for module, names in by_module.items()
        )

    def merged(self, row: Row) -> str:
        parts = [self.part(path, row.target) for path in row.sources]
        # What is needed while a module loads stands first.
        ordered, left = [], list(parts)
        while left:
            names = {module_of(each.path) for each in left}
            ready = next((each for each in left if not (each.needs & names - {module_of(each.path)})), None)
            if ready is None:
                self.problems.append(f"{row.target}: a circle among {[each.path for each in left]}")
                return ""
            ordered.append(ready)
            left.remove(ready)
        bound: dict[str, tuple[str, str]] = {}
        for part in ordered:
            for key, name, _ in [*part.imports, *part.checked]:
                if name in bound and bound[name][0] != key:
                    self.problems.append(
                        f"{row.target}: {name} is {key} in {part.path}, {bound[name][0][:60]} in {bound[name][1]}"
                    )
                bound.setdefault(name, (key, part.path))
            for name, (text, (start, end)) in part.defined.items():
                if name in bound and bound[name][0] != text:
                    self.problems.append(f"{row.target}: {name} of {part.path} is another in {bound[name][1]}")
                elif name in bound:
                    print(f"{row.target}: {name} once for {part.path} and {bound[name][1]}")
                    part.lines[start - 1 : end] = [None] * (end - start + 1)
                bound.setdefault(name, (text, part.path))
                if hasattr(builtins, name) and name != "__doc__":
                    self.problems.append(f"{row.target}: {name} of {part.path} is a builtin's name")
        imports, seen = [], set()
        for part in ordered:
            for _, _, text in part.imports:
                statement = text.partition("  #")[0]
                if statement not in seen:
                    seen.add(statement)
                    imports.append(text)
        checked = [text for part in ordered for _, _, text in part.checked]
        checked = [text for number, text in enumerate(checked) if text not in checked[:number] and text not in seen]
        if any("__future__" in text for text in imports) and not all(
            any("__future__" in text for _, _, text in part.imports) for part in ordered
        ):
            self.problems.append(f"{row.target}: __future__ in some parts only")
        if len(ordered) == 1:
            docstring = ordered[0].docstring
        else:
            docstring = row.title
        blocks = ['"""' + docstring + ("\n" if "\n" in docstring else "") + '"""', "\n".join(imports)]
        if checked:
            typed = (
                "TYPE_CHECKING" if any("import TYPE_CHECKING" in text for text in imports) else "typing.TYPE_CHECKING"
            )
            blocks.append(f"if {typed}:\n" + "\n".join("    " + text for text in checked))
        for part in ordered:
            body = "\n".join(line for line in part.lines if line is not None).strip("\n")
            if len(ordered) > 1:
                words = []
                for paragraph in part.docstring.split("\n\n"):
                    if words:
                        words.append("#")
                    words += [
                        "# " + line
                        for line in textwrap.wrap(
                            " ".join(paragraph.split()), WIDTH - 2, break_long_words=False, break_on_hyphens=False
                        )
                    ]
                body = "\n".join(words) + "\n\n" + body
            blocks.append(body)
        return "\n\n\n".join(block for block in blocks if block) + "\n"

    def circles(self) -> None:
        """Say which modules would import each other while they load."""
        graph: dict[str, set[str]] = defaultdict(set)
        why: dict[tuple[str, str], str] = {}
        for module, path in self.modules.items():
            for node in ast.parse(Path(path).read_text()).body:
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    for each in node.names:
                        full = f"{node.module}.{each.name}"
                        old = full if full in self.modules else node.module
                        if old in self.modules:
                            a, b = self.moved.get(module, module), self.moved.get(old, old)
                            if a != b:
                                graph[a].add(b)
                                why.setdefault((a, b), f"{module.rpartition('.')[2]} > {old.rpartition('.')[2]}")
        index, low, stack, out = {}, {}, [], []
        sys.setrecursionlimit(10000)

        def visit(node: str) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            for other in sorted(graph[node]):
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in stack:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                component = []
                while True:
                    component.append(stack.pop())
                    if component[-1] == node:
                        break
                if len(component) > 1:
                    out.append(component)

        for module in list(self.modules):
            new = self.moved.get(module, module)
            if new not in index:
                visit(new)
        for component in out:
            inside = [f"{a} -> {b} ({why[a, b]})" for a in component for b in graph[a] if b in component]
            self.problems.append("circle:\n    " + "\n    ".join(sorted(inside)))

    def check(self) -> None:
        self.circles()
        total = set(self.modules.values()) - {source for row in self.rows for source in row.sources}
        for row in self.rows:
            text = self.merged(row)
            total.add(row.target)
            if text.count("\n") > 900:
                print(f"{row.target} would have {text.count(chr(10))} lines")
        print(
            len(total),
            "files of the packages with __init__.py, in",
            len({Path(path).parent for path in total}),
            "directories",
        )

    def apply(self, areas: list[str]) -> None:
        texts = {row.target: self.merged(row) for row in self.rows}
        if self.problems:
            return
        for row in self.rows:
            if row.sources == [row.target]:
                continue
            for source in row.sources:
                Path(source).unlink()
            Path(row.target).parent.mkdir(parents=True, exist_ok=True)
        for target, text in texts.items():
            Path(target).write_text(text)
        # Directories that nothing is left in go, with the docstring that said what was there.
        for package in PACKAGES:
            for directory in sorted(
                (each for each in Path(package).rglob("*") if each.is_dir()), key=lambda each: -len(each.parts)
            ):
                left = [each for each in directory.iterdir() if each.name != "__pycache__"]
                if directory.with_suffix(".py").is_file() and [each.name for each in left] == ["__init__.py"]:
                    left[0].unlink()  # It passed on what the module of its name holds itself.
                    left = []
                if [each.name for each in left] == ["__init__.py"] and len(ast.parse(left[0].read_text()).body) <= 1:
                    left[0].unlink()
                    left = []
                if not left:
                    shutil.rmtree(directory)
        self.rename(set(texts))
        subprocess.run([".venv/bin/ruff", "check", "-q", "--select", "I,F401", "--fix", "."], check=False)
        subprocess.run([".venv/bin/ruff", "format", "-q", "."], check=True)
        # Several statements that became one have one comment for the linter, at its beginning.
        several = re.compile(
            r"^( *from [\w.]+ import \()( *#[^\n]*)?\n((?: +\w+(?: as \w+)?,(?: *#[^\n]*)?\n)+ *\))", re.MULTILINE
        )

        def one_comment(match: re.Match[str]) -> str:
            comments = [each.strip() for each in [match[2] or "", *re.findall(r" *# noqa.*", match[3])] if each]
            first = comments[0] if comments else ""
            return match[1] + (f"  {first}" if first else "") + "\n" + re.sub(r" *# noqa.*", "", match[3])

        for path in listed("*.py"):
            text = Path(path).read_text()
            if path.startswith(IN_WORKERS):
                # Workers run these beside each other in other interpreters.
                beside = re.sub(
                    r"(?m)^( *from \.[^#\n]*[^#\n (])$",
                    r"\1  # noqa: TID252  beside this file, whatever imports it",
                    text,
                )
                beside = re.sub(
                    r"(?m)^( *from \.[^#\n]* \()$", r"\1  # noqa: TID252  beside this file, whatever imports it", beside
                )
                if beside != text:
                    Path(path).write_text(beside)
                    text = beside
            if path.startswith(PACKAGES) and (new := several.sub(one_comment, text)) != text:
                Path(path).write_text(new)
        subprocess.run([".venv/bin/ruff", "format", "-q", "."], check=True)

    def rename(self, written: set[str]) -> None:
        """Give everything that names a module its new name."""
        moved = {old: new for old, new in self.moved.items() if old != new}
        for path in listed("*.py"):
            if path in written:
                continue
            text = Path(path).read_text()
            lines = text.splitlines()
            tree = ast.parse(text)
            for node in sorted(
                (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)), key=lambda each: -each.lineno
            ):
                self.absolute(node, path)
                new = self.statement(node, lines, "", path)
                if new is not None:
                    lines[node.lineno - 1 : node.end_lineno] = [new]
            new_text = "\n".join(lines) + "\n"
            if new_text != text and lines:
                Path(path).write_text(new_text)
        dotted = re.compile(
            r"(?<![\w.])(" + "|".join(re.escape(old) for old in sorted(moved, key=len, reverse=True)) + r")(?![\w])"
        )
        files = {old.replace(".", "/") + ".py": new.replace(".", "/") + ".py" for old, new in moved.items()}
        short = {
            old.partition("/")[2]: new.partition("/")[2]
            for old, new in files.items()
            if old.count("/") > 1 and old.startswith("isaaclab_arena/")
        }
        paths = re.compile(
            r"(?<![\w/])("
            + "|".join(re.escape(old) for old in sorted([*files, *short], key=len, reverse=True))
            + r")(?!\w)"
        )
        for path in listed(*TEXTS):
            if path in ("tools/merge_modules.py", "CHANGELOG.md"):
                continue
            text = Path(path).read_text()
            # The table itself stays.
            head, mark, tail = text.partition("<!-- files -->") if path == str(TABLE) else ("", "", text)
            kept, end, tail = tail.partition("<!-- /files -->") if mark else ("", "", tail)
            head, tail = (
                paths.sub(
                    lambda match: files.get(match[1]) or short[match[1]],
                    dotted.sub(lambda match: moved[match[1]], part),
                )
                for part in (head, tail)
            )
            new = head + mark + kept + end + tail
            if path == COMMANDS:
                new = re.sub(r"\{_HERE\}\.(start|evaluate|compare|look|files|train|machine)\.", "{_HERE}.", new)
            if new != text:
                Path(path).write_text(new)


if __name__ == "__main__":
    command, areas = sys.argv[1], sys.argv[2:]
    merger = Merger([row for row in read_table() if not areas or row.area in areas])
    if command == "check":
        merger.check()
    else:
        merger.apply(areas)
    print("\n".join(merger.problems))
    sys.exit(bool(merger.problems))
