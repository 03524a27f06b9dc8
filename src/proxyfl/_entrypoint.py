"""From ``package.module:factory`` to the callable it names, and from its errors to ours."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxyfl.errors import InputError


def resolve(spec: str, *, error: type[InputError]) -> Callable[..., Any]:
    """The callable named by ``spec``; ``error`` says which part of the name leads nowhere.

    A file in the current directory can be named too: the directory is put on the import path, as
    ``python -m`` does and an installed command does not. It stays there, since the user's code may
    import its neighbours later."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise error(f"Expected package.module:factory, got {spec!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as problem:
        said = f"importing {module_name} raised {type(problem).__name__}: {problem}"
        missing = f"{getattr(problem, 'name', None)}."
        is_absent = isinstance(problem, ModuleNotFoundError)
        # A module that is missing inside the user's module is another matter.
        if is_absent and f"{module_name}.".startswith(missing):
            said = (
                f"no module {missing[:-1]!r}. Expected package.module:factory, importable from "
                f"{here} or installed."
            )
        raise error(f"{spec!r}: {said}") from problem
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in vars(found) if not name.startswith("_")]
            has = ", ".join(public) or "nothing"
            raise error(
                f"{spec!r}: {module_name} has no {attribute!r}. It has: {has}."
            )
        found = getattr(found, part)
    if not callable(found):
        raise error(
            f"{spec!r}: expected a function or a class, found {type(found).__name__}."
        )
    resolved: Callable[..., Any] = found
    return resolved


@contextmanager
def translated(error: type[InputError], what: str) -> Iterator[None]:
    """Whatever the user's own code raises, as an ``error`` that begins with ``what``."""
    try:
        yield
    except InputError:
        raise
    except Exception as problem:
        raise error(f"{what} {type(problem).__name__}: {problem}") from problem
