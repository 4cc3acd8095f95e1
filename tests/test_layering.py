"""The rules of the code base that a parser can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "trl_agentic"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))

# What each part may import from the package, beside itself.
BELOW = {
    "types": set(),
    "words": set(),
    "algorithms": set(),
    "tools": {"types", "words"},
    "rewards": {"types", "words"},
    "tasks": {"types", "tools", "rewards"},
    "rollout": {"types", "algorithms", "tools", "rewards"},
    "evaluation": {"types", "algorithms", "tools", "rewards", "tasks", "rollout"},
    "trainers": {"types", "algorithms", "tools", "rewards", "rollout"},
    "hub": {"types", "algorithms", "tools", "rewards", "tasks", "rollout", "evaluation", "trainers"},
    "viewer": {"types", "rollout", "hub"},
    "__init__": {"types", "trainers"},
}
# The two places where an error of someone else's code becomes data.
BROAD_EXCEPTS = {"tools/runtime.py", "trainers/reward_guard.py"}
VAGUE_NAMES = {"utils", "common", "base", "helpers", "manager"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path: Path) -> str:
    """`trl_agentic/rollout/loop.py` -> `rollout/loop.py`."""
    return path.relative_to(PACKAGE).as_posix()


def part_of(module: str) -> str:
    """`trl_agentic.rollout.loop` -> `rollout`; the package itself is `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_of(path: Path) -> str:
    """`trl_agentic/rollout/loop.py` -> `trl_agentic.rollout.loop`."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.Module, path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, also inside functions and for type checking."""
    package = path.relative_to(REPOSITORY).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [origin, node.module]))
            # `from . import loop` and `from trl_agentic import rollout` name modules, not attributes
            if module == "trl_agentic" or node.module is None:
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes every exception: bare, `Exception` or `BaseException`, alone or in a tuple."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in caught)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def public_definitions(tree: ast.Module) -> Iterator[ast.AST]:
    """Public classes and functions of a module, and the public methods of its public classes."""
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, *FUNCTIONS)) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from (item for item in node.body if isinstance(item, FUNCTIONS) and not item.name.startswith("_"))


def tracked_files() -> list[Path]:
    """Every file under version control, or that would be; all files of the package where there is no git."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    paths = (REPOSITORY / name for name in done.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def parsed() -> list[tuple[Path, ast.Module]]:
    """All modules of the package with their syntax trees."""
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES]


def test_relative_and_absolute_imports_are_read_alike():
    lines = ["import torch", "from ..types import Segment", "from . import loop", "from trl_agentic import rewards"]
    code = "\n".join([*lines, "from .batch import rows"])
    path = PACKAGE / "rollout" / "example.py"
    assert list(imported_modules(ast.parse(code), path)) == [
        "torch",
        "trl_agentic.types",
        "trl_agentic.rollout.loop",
        "trl_agentic.rewards",
        "trl_agentic.rollout.batch",
    ]


def test_dependencies_point_one_way():
    wrong = []
    for path, tree in parsed():
        part = part_of(module_of(path))
        for module in imported_modules(tree, path):
            if module.startswith("trl_agentic.") and part_of(module) not in BELOW[part] | {part}:
                wrong.append(f"{name_of(path)} imports {module}")
    assert not wrong


def test_the_declared_order_has_no_cycle():
    def reachable(part: str) -> set[str]:
        return BELOW[part].union(*map(reachable, BELOW[part]))

    assert not [part for part in BELOW if part in reachable(part)]


@pytest.mark.parametrize("name", ["types.py", "words.py"])
def test_the_lowest_modules_import_the_standard_library_alone(name: str):
    path = PACKAGE / name
    roots = {module.split(".")[0] for module in imported_modules(ast.parse(path.read_text(encoding="utf-8")), path)}
    assert roots <= set(sys.stdlib_module_names)


def test_algorithms_import_torch_and_the_standard_library_alone():
    for path, tree in parsed():
        if path.parent.name == "algorithms":
            foreign = {
                module.split(".")[0]
                for module in imported_modules(tree, path)
                if not module.startswith("trl_agentic.algorithms")
            }
            assert foreign <= set(sys.stdlib_module_names) | {"torch"}, name_of(path)


def test_no_file_is_longer_than_300_lines():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > 300} == {}


def test_no_function_body_is_longer_than_40_lines():
    long = {
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}": body_lines(node)
        for path in [*MODULES, *EXAMPLES]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, FUNCTIONS) and body_lines(node) > 40
    }
    assert long == {}


def test_every_public_name_has_a_docstring():
    bare = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path, tree in parsed()
        for node in public_definitions(tree)
        if not ast.get_docstring(node)
    ]
    assert bare == []


def test_every_module_that_holds_code_has_a_docstring():
    assert [name_of(path) for path, tree in parsed() if tree.body and not ast.get_docstring(tree)] == []


def test_broad_excepts_stand_in_two_places():
    found = [
        name_of(path)
        for path, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert set(found) <= BROAD_EXCEPTS
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("clause", "broad"),
    [
        ("except", True),
        ("except Exception", True),
        ("except BaseException as e", True),
        ("except (OSError, Exception)", True),
        ("except (OSError, ValueError)", False),
    ],
)
def test_a_broad_except_is_recognised(clause: str, broad: bool):
    (handler,) = ast.parse(f"try:\n    pass\n{clause}:\n    pass").body[0].handlers
    assert is_broad(handler) is broad


def test_nothing_has_a_name_that_says_nothing():
    vague = [
        path.relative_to(REPOSITORY).as_posix()
        for path in tracked_files()
        if VAGUE_NAMES & {word for part in path.relative_to(REPOSITORY).parts for word in re.split(r"[._-]", part)}
    ]
    assert vague == []


def test_no_file_names_a_path_of_one_machine_or_the_host_of_a_registry():
    # Put together from pieces, so that this file does not match
    folders = "|".join(["wo" + "rk", "ro" + "ot", "ho" + r"me/\w+", "Us" + r"ers/\w+"])
    hosts = "|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "download" + r"\.pytorch", "registry" + r"\.npm"])
    pattern = re.compile(rf"(?<![\w.~}}/-])/(?:{folders})/|{hosts}")
    leaks = []
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), 1):
            if found := pattern.search(line):
                leaks.append(f"{path.relative_to(REPOSITORY)}:{number}: {found.group()}")
    assert leaks == []


def test_the_top_level_holds_what_the_architecture_names():
    folders = {path.relative_to(REPOSITORY).parts[0] for path in tracked_files() if path.parent != REPOSITORY}
    visible = {name for name in folders if not name.startswith(".")}
    assert visible <= {"trl_agentic", "examples", "configs", "scripts", "tests", "docs"}
