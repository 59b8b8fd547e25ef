"""Nothing in the house unpickles, evaluates text or trusts code that comes with data."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIRECTORIES = ("isaaclab_arena", "isaaclab_arena_gr00t", "arena_wire", "submodules/Isaac-GR00T/gr00t", "benchmarks")
FILES = sorted(
    {path for directory in DIRECTORIES for path in (ROOT / directory).rglob("*.py")} | {ROOT / "eval_runner.py"}
)

UNPICKLING_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_ARGUMENTS = {"allow_pickle": True, "trust_remote_code": True, "weights_only": False, "shell": True}
FORBIDDEN_CALLS = {"os.system", "os.popen", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle",
                   "pandas.read_pickle", "torch.hub.load", "gc.get_objects"}  # fmt: skip


def offences(source: str) -> Iterator[str]:
    """Yield what a module does that none here may do."""
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            if name.partition(".")[0] in UNPICKLING_MODULES:
                yield f"line {node.lineno}: imports {name}"  # pyright: ignore[reportAttributeAccessIssue]  imports have lines
        if isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {offence}" for offence in offences_of_call(node))


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else []


def offences_of_call(node: ast.Call) -> Iterator[str]:
    called, given = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
    if called in FORBIDDEN_NAMES or called in FORBIDDEN_CALLS:
        yield f"calls {called}"
    if called == "importlib.import_module":
        names = [part.value for part in node.args if isinstance(part, ast.Constant)]
        yield from (f"imports {name}" for name in names if str(name).partition(".")[0] in UNPICKLING_MODULES)
    for name, value in FORBIDDEN_ARGUMENTS.items():
        # What is decided elsewhere may be decided wrongly, so only the safe constant will do.
        if name in given and ast.unparse(given[name]) != str(not value):
            yield f"says {name}={ast.unparse(given[name])}"
    if called.endswith("torch.load") and "weights_only" not in given:
        yield "calls torch.load without weights_only=True"
    if called == "yaml.load" and ast.unparse(given.get("Loader", ast.Constant(None))) != "_CoreLoader":
        yield "calls yaml.load with a loader that is not the safe one"
    if called in {"np.load", "numpy.load"} and "allow_pickle" not in given:
        yield f"calls {called} without allow_pickle=False"


def test_no_module_unpickles_evaluates_text_or_trusts_code_that_comes_with_data():
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text())) for path in FILES}
    assert len(found) > 300
    assert {name: offence for name, offence in found.items() if offence} == {}


UNSAFE = (
    "import pickle",
    "from pickle import loads",
    "import joblib.numpy_pickle",
    "importlib.import_module('dill')",
    "eval('1')",
    "exec(text)",
    "os.system('ls')",
    "subprocess.run('ls', shell=True)",
    "torch.load(path)",
    "torch.load(path, weights_only=trusted)",
    "np.load(path)",
    "np.load(path, allow_pickle=True)",
    "yaml.load(text)",
    "yaml.load(text, Loader=yaml.Loader)",
    "yaml.unsafe_load(text)",
    "AutoModel.from_pretrained(name, trust_remote_code=options.trust)",
)
SAFE = (
    "torch.load(path, weights_only=True)",
    "np.load(path, allow_pickle=False)",
    "yaml.load(text, Loader=_CoreLoader)",
    "model.eval()",
    "re.compile('a')",
)


@pytest.mark.parametrize("source", [*UNSAFE, *SAFE])
def test_the_check_finds_what_is_unsafe_and_nothing_else(source):
    assert bool(list(offences(source))) == (source in UNSAFE)


def test_a_security_policy_says_how_to_report():
    text = (ROOT / "SECURITY.md").read_text()
    for word in ("private security advisory", "--no_import", "python:", "weights_only"):
        assert word in text
