"""`latentbench new`: small packages that add an adapter, a task or a judge, ready to pass their kit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import click

from latentbench.cli._output import echo_json
from latentbench.errors import UserError
from latentbench.registry import FORMATS, JUDGES, TASKS, Registry

__all__ = ["new"]

_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".jinja"
_LONGEST = 24
"""Characters of a name, so that the lines of what is written keep to 110."""


class _Scaffold(NamedTuple):
    """The files of one kind of package; `@` in a path stands for its module."""

    registry: Registry
    """Where the name will be registered."""
    files: tuple[str, ...]
    """Paths in the package; the template of each is named by its last part."""
    next: str
    """Command that shows the result once it is installed."""


_SCAFFOLDS = {
    "adapter": _Scaffold(
        FORMATS,
        ("pyproject.toml", "README.md", "@.py", "tests/test_@.py"),
        "latentbench describe dict PATH",
    ),
    "task": _Scaffold(
        TASKS,
        (
            "pyproject.toml",
            "README.md",
            "@/__init__.py",
            "@/card.toml",
            "@/task.py",
            "@/metrics.py",
            "tests/test_@.py",
        ),
        "latentbench doctor task NAME",
    ),
    "judge": _Scaffold(
        JUDGES, ("pyproject.toml", "README.md", "@.py", "tests/test_@.py"), "latentbench doctor judge NAME"
    ),
}


@click.group()
def new() -> None:
    """Write a small package with an adapter, a task or a judge of your own.

    It installs with pip, registers itself through an entry point, and comes with a test that runs the conformance
    kit. What it does is a small example, to be changed.
    """


_out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write; by default latentbench-NAME here.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@new.command()
@click.argument("name")
@_out
@_json
def adapter(name: str, out: Path | None, as_json: bool) -> None:
    """Write a package that loads dictionaries of a checkpoint format called NAME."""
    _write("adapter", name, out, as_json)


@new.command()
@click.argument("name")
@_out
@_json
def task(name: str, out: Path | None, as_json: bool) -> None:
    """Write a package with a task called NAME."""
    _write("task", name, out, as_json)


@new.command()
@click.argument("name")
@_out
@_json
def judge(name: str, out: Path | None, as_json: bool) -> None:
    """Write a package with a judge called NAME."""
    _write("judge", name, out, as_json)


def _write(kind: str, name: str, out: Path | None, as_json: bool) -> None:
    scaffold = _SCAFFOLDS[kind]
    plain = _checked(scaffold.registry, name)
    folder = out if out is not None else Path(f"latentbench-{name}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} exists and is not an empty folder: nothing is overwritten; name another with --out"
        )
    module = f"latentbench_{plain}"
    texts = {path: _rendered(kind, path, name, plain) for path in scaffold.files}
    written = []
    for path, text in texts.items():
        target = folder / path.replace("@", module)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(str(target))
    if as_json:
        echo_json({"kind": kind, "name": name, "folder": str(folder), "module": module, "files": written})
        return
    for path in written:
        click.echo(path)
    then = scaffold.next.replace("NAME", name)
    click.echo(f"\nNext:\n  pip install -e '{folder}[test]'\n  python -m pytest {folder}\n  {then}")


def _checked(registry: Registry, name: str) -> str:
    """The name as part of a module's.

    Raises:
        UserError: it can't be one, or is taken.
    """
    plain = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", plain) or len(plain) > _LONGEST:
        raise UserError(
            f"{name!r} can't name a package: at most {_LONGEST} small letters and digits, '-' or '_' between "
            "words, such as 'my-format'"
        )
    if name in registry.names():
        raise UserError(
            f"a {registry.kind} called {name!r} is there already, from {registry.origin(name)}: choose another name"
        )
    return plain


def _rendered(kind: str, path: str, name: str, plain: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES / kind),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    template = environment.get_template(
        Path(path).name.replace("test_@", "test").replace("@", "module") + _SUFFIX
    )
    camel = "".join(part.capitalize() for part in plain.split("_"))
    camel = camel.removesuffix(kind.capitalize()) or camel  # "my-task" makes MyTask, not MyTaskTask
    return template.render(name=name, module=f"latentbench_{plain}", camel=camel)
