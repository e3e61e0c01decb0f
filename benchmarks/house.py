"""The house in numbers: what a reader has to hold in mind. docs/architecture.md.

python -m benchmarks.house [--checkout DIRECTORY] [--list]. Read from the source, nothing runs: containers that hold state of a message
outside its flight, the shapes that an attempt takes, methods that only forward, imports that go up, and lines. `benchmarks.road` counts
what runs: the files that are opened and the functions that are called for a message.
"""

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tidy.test_floors import FLOORS

PACKAGES = ("pipeline", "store", "admin", "rules")
CONTAINER = re.compile(r"\b(dict|set|list|deque|OrderedDict|defaultdict|frozenset)\[.*\b(MessageId|Fork)\b")
FLIGHT = ("flights.py", "flight.py")
SHAPES = (  # values between the queue and the record of one attempt
    "Arriving", "ForkAttempt", "DeliveryJob", "DeliveryReport", "TransactionResult", "NextHopNews", "AttemptOutcome",
    "AttemptRecord",
)  # fmt: skip
ARGUMENTS_MAX = 4  # more of them are a shape of their own
Found = Iterator[str]


def sources(checkout: Path, *packages: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules of these packages; a package may be one module."""
    for package in packages:
        top = checkout / "shadowrelay"
        for path in [top / f"{package}.py", *sorted((top / package).rglob("*.py"))]:
            if path.is_file():
                yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def containers(checkout: Path) -> Found:
    """Attributes of the loops with an entry for each message, or fork, that is in memory."""
    for path, tree in sources(checkout, "pipeline"):
        if path.name in FLIGHT:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for each in ast.walk(node):
                if not isinstance(each, ast.AnnAssign):
                    continue
                is_own = isinstance(each.target, ast.Attribute) or each in node.body
                if is_own and CONTAINER.search(ast.unparse(each.annotation)):
                    yield f"{path.name}: {node.name}.{ast.unparse(each.target).removeprefix('self.')}"


def shapes(checkout: Path) -> Found:
    """Classes for one attempt, and functions with so many parameters that they are one."""
    for path, tree in sources(checkout, "pipeline", "rules", "ports", "model"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in SHAPES:
                yield f"{path.name}: {node.name}"
    for path, tree in sources(checkout, "pipeline"):
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef) and node.name == "_work":
                count = len(node.args.args) + len(node.args.kwonlyargs) - 1
                if count > ARGUMENTS_MAX:
                    yield f"{path.name}: {count} arguments of {node.name}"


def forwarders(checkout: Path) -> Found:
    """Methods that only pass their arguments on to an attribute."""
    for path, tree in sources(checkout, "pipeline", "store", "admin"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and only_forwards(each):
                        yield f"{path.name}: {node.name}.{each.name}"


FORWARDING = (
    ast.Return, ast.Expr, ast.Await, ast.Call, ast.Attribute, ast.Name, ast.keyword, ast.Tuple, ast.Constant, ast.Starred, ast.expr_context,
    ast.Assign, ast.AnnAssign, ast.Subscript, ast.BinOp, ast.operator, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.JoinedStr,
)  # fmt: skip


def only_forwards(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """One call of what an attribute has, with all its own arguments, and nothing decided: the call may be packed (`partial`), and its
    result given a type. A property, and a method without arguments or body, forward nothing."""
    body = [each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    own = {each.arg for each in (*function.args.args[1:], *function.args.kwonlyargs)}
    if not own or not body or len(body) > 3 or function.decorator_list or function.name.startswith("__"):
        return False
    nodes = [node for each in body for node in ast.walk(each) if not isinstance(each, ast.AnnAssign) or node is not each.annotation]
    if not all(isinstance(node, FORWARDING) for node in nodes):
        return False
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    outward = [call for call in calls if re.fullmatch(r"self\.(\w+\.)+\w+|self\._(ask|find)", call)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        len(outward) == 1
        and own <= names
        and set(calls) - set(outward)
        <= {"partial", "tuple", "list", "dict"} | {call for call in calls if call.startswith(("rows.", "reading."))}
    )


def upward(checkout: Path) -> Found:
    """Imports of a higher floor, by the floors of this checkout."""
    for path in sorted((checkout / "shadowrelay").rglob("*.py")):
        own = (*path.relative_to(checkout / "shadowrelay").with_suffix("").parts, "")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shadowrelay."):
                package = (node.module or "").split(".")[1]
                if FLOORS.get(package, -1) > FLOORS.get(own, 99):
                    yield f"{path.name}: {node.module}"


COUNTS: dict[str, Callable[[Path], Found]] = {
    "containers with state of a message outside its flight": containers,
    "shapes of an attempt": shapes,
    "methods that only forward": forwarders,
    "imports that go up": upward,
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=Path.cwd())
    parser.add_argument("--list", action="store_true", help="name what is counted")
    options = parser.parse_args()
    for title, count in COUNTS.items():
        found = list(count(options.checkout))
        print(f"{len(found):5} {title}")
        if options.list:
            print(*(f"        {each}" for each in found), sep="\n")
    lines = {name: sum(len(path.read_bytes().splitlines()) for path, _ in sources(options.checkout, name)) for name in (*PACKAGES, "ports")}
    print(f"{sum(lines.values()):5} lines: {', '.join(f'{name} {count}' for name, count in lines.items())}")


if __name__ == "__main__":
    main()
