"""The house keeps its own rules: layers, purity, promises, docs that run, nothing of one machine in the repository."""

import ast
import re
import shlex
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from tokenize import COMMENT, STRING

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import app

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "holdfast"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _tracked() -> list[Path]:
    """The files that git knows or would add; in an unpacked archive, all that look like ours."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = found.stdout.splitlines() if found.returncode == 0 else []
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def _modules(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def _blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    pattern = rf"^```({'|'.join(languages)})\n(.*?)^```$"
    return [
        (text[: m.start()].count("\n") + 2, m.group(2)) for m in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.promise("house.layers")
def test_the_drawing_is_the_folders_on_disk_and_the_layers_of_the_linter() -> None:
    [(_, drawing)] = _blocks((ROOT / "docs" / "architecture.md").read_text(), "")[:1]
    drawn = [line.split() for line in drawing.strip().splitlines()]
    [layers] = [c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    assert drawn == [layer.split(" | ") for layer in layers["layers"]]
    assert layers["exhaustive"] is True
    on_disk = {p.stem for p in SRC.iterdir() if (p / "__init__.py").exists() or p.suffix == ".py"} - {"__init__"}
    assert {name for line in drawn for name in line} == on_disk


def _folders(drawing: str) -> set[str]:
    """The folders of an indented drawing: `name/`, two spaces deeper than the folder that holds it."""
    found, path = set[str](), list[str]()
    for line in drawing.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        path[depth:] = [name.rstrip("/")]
        if name.endswith("/"):
            found.add("/".join(path))
    return found


@pytest.mark.promise("house.layers")
def test_the_drawn_folders_are_those_on_disk() -> None:
    drawing = _blocks((ROOT / "docs" / "architecture.md").read_text(), "")[1][1]
    on_disk = {path.parent.relative_to(SRC).as_posix() for path in SRC.rglob("__init__.py")} - {"."}
    assert _folders(drawing) == on_disk


@pytest.mark.promise("house.layers")
def test_the_table_of_doors_is_the_contracts_of_the_linter() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Doors")[1]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    drawn = {frozenset(row[0].strip().split(", ")): set(re.findall(r"`([^`]+)`", row[1])) for row in rows}

    def place(module: str) -> str:
        path = module.removeprefix("holdfast.").replace(".", "/")
        return path if (SRC / path).is_dir() else f"{path}.py"

    contracts = [c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "protected"]
    assert drawn == {frozenset(c["protected_modules"]): set(map(place, c["allowed_importers"])) for c in contracts}


_CITED = re.compile(r"(?<![\w/.*{<-])((?:[\w-]+/)*[\w-]+\.(?:py|md))\b")


@pytest.mark.promise("house.layers")
def test_a_file_that_is_named_in_docs_docstrings_or_comments_exists() -> None:
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in _tracked()]
    texts = {path: path.read_text() for path in [*_DOCS, ROOT / "CONTRIBUTING.md"]}
    for path in SRC.rglob("*.py"):
        with path.open("rb") as source:
            tokens = [token for token in tokenize.tokenize(source.readline) if token.type in (STRING, COMMENT)]
        texts[path] = "\n".join(token.string for token in tokens)
    missing = [
        (path.relative_to(ROOT).as_posix(), name)
        for path, text in texts.items()
        for name in _CITED.findall(text)
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []


@pytest.mark.promise("core.pure")
def test_core_is_pure() -> None:
    allowed = set(sys.stdlib_module_names) | {"holdfast"}
    worldly = {"asyncio", "socket", "subprocess", "threading", "multiprocessing", "os", "pathlib", "logging", "random"}
    for path, tree in [*_modules(SRC / "core"), (SRC / "errors.py", ast.parse((SRC / "errors.py").read_text()))]:
        for node in ast.walk(tree):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), path
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed - worldly, f"{path.name} imports {name}"


@pytest.mark.promise("house.small")
def test_every_module_says_what_it_owns_and_stays_small() -> None:
    for path, tree in _modules(SRC):
        assert ast.get_docstring(tree), f"{path} has no docstring"
        assert len(path.read_text().splitlines()) <= 600, f"{path} is over 600 lines"


def _imports(module: str, path: Path, known: set[str]) -> Iterator[str]:
    """Every module of ours that a module names: at its top, inside functions, under TYPE_CHECKING, in lazy exports."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.stem == "__init__":
            yield node.value if "." in node.value else ""  # a table of lazy exports, or import_module("holdfast.x")


def _import_graph() -> dict[str, set[str]]:
    paths = {
        ".".join(("holdfast", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in SRC.rglob("*.py")
    }
    known = set(paths)
    return {module: {*_imports(module, path, known)} & known - {module} for module, path in paths.items()}


def _cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules in which each one reaches every other."""
    below: dict[str, set[str]] = {}
    for start in graph:
        reached, waiting = set[str](), [*graph[start]]
        while waiting:
            if (module := waiting.pop()) not in reached:
                reached.add(module)
                waiting += graph[module]
        below[start] = reached
    groups = (frozenset(other for other in below[module] if module in below[other]) for module in graph)
    return {group for group in groups if group}


@pytest.mark.promise("house.cycles")
def test_no_imports_go_in_a_circle() -> None:
    graph = _import_graph()
    found = _cycles(graph)
    drawn = [
        "\n".join(f"{module} → {', '.join(sorted(graph[module] & group))}" for module in sorted(group))
        for group in found
    ]
    assert not drawn, "modules that import each other:\n" + "\n\n".join(drawn)


@pytest.mark.promise("house.cycles")
def test_a_cycle_is_found_wherever_the_import_stands(tmp_path: Path) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set[str]()}
    assert _cycles(graph) == {frozenset("abc")}
    (tmp_path / "__init__.py").write_text(
        "import m.a\nfrom m import b\nfrom .c import x\n"
        "def f():\n    from m.d import y\n"
        "def __getattr__(name):\n    return import_module('m.e')\n"
        "if TYPE_CHECKING:\n    from m.f import z\n"
    )
    known = {f"m.{letter}" for letter in "abcdefg"} | {"m"}
    assert known & set(_imports("m", tmp_path / "__init__.py", known)) == known - {"m", "m.g"}


def _promises_of_tests() -> dict[str, list[str]]:
    """test id → the promises it names, for every test function and Hypothesis case; read, not run."""
    found: dict[str, list[str]] = {}
    for folder in (ROOT / "tests", SRC / "testing"):
        for path, tree in _modules(folder):
            module = path.relative_to(ROOT).as_posix()
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    found[f"{module}::{node.name}"] = [p for d in node.decorator_list if (p := _promise(d))]
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    name = node.targets[0].id
                    if (
                        name.startswith("Test")
                        and isinstance(node.value, ast.Call)
                        and (p := _promise(node.value.func))
                    ):
                        found[f"{module}::{name}"] = [p]
    return found


def _promise(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called in ("promise", "contract"):
            return str(node.args[0].value)
    return None


@pytest.mark.promise("house.requirements")
def test_every_promise_has_a_test_and_every_test_a_promise() -> None:
    listed = tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())
    promised = {f"{section}.{name}" for section, entries in listed.items() for name in entries}
    named = _promises_of_tests()
    assert [test for test, promises in named.items() if not promises] == [], "tests that name no promise"
    shown = {promise for promises in named.values() for promise in promises}
    assert shown - promised == set(), "tests of promises that are not listed"
    assert promised - shown == set(), "promises without a test"


@pytest.mark.promise("house.origins")
def test_every_origin_that_claims_to_be_true_names_a_test_that_exists() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (ROOT / "docs" / "origins.md").read_text().splitlines()
        if re.match(r"\| \d", line)
    ]
    assert len(rows) >= 45
    assert len({row[0] for row in rows}) == len(rows)
    for number, capability, name, module, test in rows:
        assert capability, number
        assert name, number
        assert (module == "–") == (test == "–"), f"{number} is half true"
        if module == "–":
            continue
        assert (SRC / module.strip("`")).exists(), f"{number}: no module {module}"
        file, _, function = test.strip("`").partition("::")
        source = (ROOT / file).read_text()
        assert re.search(rf"(def|class) {re.escape(function)}\b", source), f"{number}: no test {test}"


@pytest.mark.promise("house.version")
def test_the_version_stands_in_one_place() -> None:
    version = re.escape(holdfast.__version__)
    stands = [
        path
        for path in [*SRC.rglob("*.py"), ROOT / "pyproject.toml"]
        if re.search(rf'["/]{version}"', path.read_text())
    ]
    assert stands == [SRC / "version.py"]


def _remedies() -> Iterator[tuple[str, str]]:
    for path, tree in _modules(SRC):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                parts = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
                yield f"{path.relative_to(SRC)}:{node.value.lineno}", "".join(str(part) for part in parts)


@pytest.mark.promise("house.remedies")
def test_a_remedy_names_arguments_settings_and_commands_that_exist() -> None:
    known = {"connections", "sslmode", "sys", "text", "count"}  # of the URLs of stores; of examples
    for _, tree in _modules(SRC):
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known.add(node.target.id)  # a field
    for place, remedy in _remedies():
        # A gateway's operator reads it in the log, and its file has no such key.
        assert "Limits(" not in remedy or "in Python raise Limits(" in remedy, f"{place}: {remedy}"
        assert set(re.findall(r"(?<![-\w?&{])([a-z_]+)=", remedy)) <= known, f"{place}: {remedy}"
        for command in re.findall(r"`holdfast ([a-z ]+[a-z])", remedy):
            words = [word for word in command.split() if word.islower()]
            result = CliRunner().invoke(app, [*words, "--help"])
            assert result.exit_code == 0, f"{place}: {remedy}"


_HEAVY = (
    "mcp mcp_types httpx2 aiohttp uvicorn click yaml asyncpg redis aiosqlite cryptography jsonschema fastmcp "
    "langchain_core opentelemetry pydantic pydantic_core anyio httptools ssl asyncio"
)
_LATER = "mcp mcp_types httpx2 uvicorn click yaml asyncpg redis aiosqlite jsonschema fastmcp langchain_core pydantic"


@pytest.mark.promise("house.imports")
@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import holdfast", _HEAVY),
        ("import holdfast; holdfast.Server('it', url='http://127.0.0.1/')", _LATER),
        ("import holdfast; holdfast.open_store('memory:')", _LATER),
        ("import holdfast; holdfast.Link('http://127.0.0.1/')", _LATER),
    ],
)
def test_an_import_loads_what_its_user_needs(statement: str, unwanted: str) -> None:
    code = f"{statement}\nimport sys\nprint(*(name for name in {unwanted!r}.split() if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.split()) == (0, []), result.stderr


@pytest.mark.promise("house.imports")
def test_an_unknown_attribute_imports_nothing() -> None:
    code = "import sys, holdfast; seen = set(sys.modules)"
    code += "; print(hasattr(holdfast, 'Sesion'), *(set(sys.modules) - seen))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.split()) == (0, ["False"]), result.stderr


@pytest.mark.promise("house.imports")
def test_the_names_that_are_imported_late_are_those_that_type_checkers_see() -> None:
    [block] = [node for node in ast.parse((SRC / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    modules = {name for name, module in seen.items() if module == "holdfast"}
    assert modules <= holdfast._PACKAGES
    assert {name: module for name, module in seen.items() if name not in modules} == holdfast._MODULE_OF
    assert set(holdfast.__all__) == set(seen)
    assert all(getattr(holdfast, name) is getattr(import_module(module or ""), name) for name, module in seen.items())


@pytest.mark.promise("house.typed")
def test_the_package_is_typed() -> None:
    assert (SRC / "py.typed").exists()
    assert PYPROJECT["tool"]["pyright"]["typeCheckingMode"] == "strict"


@pytest.mark.promise("house.clean")
def test_nothing_of_one_machine_is_in_the_repository() -> None:
    hosts = "|".join(
        ("pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(org|com)", "npmmirror", "artifactory")
    )
    forbidden = re.compile(rf"({hosts}|/(work|root|farm|home)/\w|--(extra-)?index-url|-----BEGIN [A-Z ]*PRIVATE KEY)")
    for path in _tracked():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if found := forbidden.search(text):
            raise AssertionError(f"{path.relative_to(ROOT)}: {found.group()}")


_DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _snippets(*languages: str) -> list[object]:
    return [
        pytest.param(path, code, id=f"{path.relative_to(ROOT)}:{line}")
        for path in _DOCS
        for line, code in _blocks(path.read_text(), *languages)
    ]


@pytest.mark.promise("house.docs")
@pytest.mark.parametrize(("path", "code"), _snippets("python"))
def test_python_in_the_docs_runs(path: Path, code: str, tmp_path: Path) -> None:
    (tmp_path / "test_snippet.py").write_text(code)
    as_test = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "StoreSuite" in code else []
    result = subprocess.run(
        [sys.executable, "-W", "error", *as_test, "test_snippet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.promise("house.docs")
@pytest.mark.parametrize(("path", "code"), _snippets("console"))
def test_commands_in_the_docs_run(path: Path, code: str, tmp_path: Path) -> None:
    first = next(code for _, code in _blocks(path.read_text(), "python"))  # what made the file that they look at
    subprocess.run([sys.executable, "-c", first], cwd=tmp_path, check=True, timeout=60)
    for line in code.splitlines():
        if line.startswith("$ "):
            command = shlex.split(line[2:])
            command[0] = str(Path(sys.executable).parent / command[0])
            result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert result.returncode == 0, line + result.stdout + result.stderr


@pytest.mark.promise("link.docs")
def test_the_tables_in_the_docs_are_the_tables_of_core() -> None:
    checked = subprocess.run([sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.promise("house.docs")
def test_shell_blocks_name_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in _DOCS:
        for _, code in _blocks(path.read_text(), "sh"):
            for target in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE):
                assert target in targets, f"{path}: make {target}"


@pytest.mark.promise("gateway.demo")
def test_the_demo_kills_a_server_and_the_session_holds() -> None:
    demo = [str(Path(sys.executable).parent / "holdfast"), "demo", "--check"]
    result = subprocess.run(demo, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all of it held" in result.stdout


@pytest.mark.promise("house.demo")
def test_four_writers_lose_nothing() -> None:
    demo = ROOT / "examples" / "four_writers.py"
    result = subprocess.run([sys.executable, demo], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "nothing was lost" in result.stdout
