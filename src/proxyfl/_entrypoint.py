"""From ``package.module:factory`` to the callable it names, and from its errors to ours.

``Imports`` says which names may be followed and where modules are looked for. Guarantees:
    * no module runs that ``modules`` does not allow; the packages that hold it run, as Python
      imports them first;
    * nothing comes from the current directory unless ``here`` or ``folders`` says so;
    * a name leads to code of the allowed modules, not through them to code of another module that
      they happen to import.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from proxyfl.errors import InputError

_NAMES = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_SPEC = re.compile(f"{_NAMES}:{_NAMES}")
_ENTRY = re.compile(f"{_NAMES}(:{_NAMES})?")


def is_code(spec: str) -> bool:
    """True if ``spec`` names code (``package.module:factory``) and not something built in."""
    return ":" in spec


def is_entry(text: str) -> bool:
    """True if ``text`` can stand in ``Imports.modules``."""
    return _ENTRY.fullmatch(text) is not None


@dataclass(frozen=True)
class Imports:
    """The code that a name such as ``package.module:factory`` may lead to."""

    modules: tuple[str, ...] | None = None
    """What may be named: a module, a package with all in it, or one ``package.module:factory``;
    None allows every name."""
    folders: tuple[Path, ...] = ()
    """Folders in which modules are looked for, after all that is installed."""
    here: bool = False
    """Whether the current directory comes first, as with ``python -m``."""
    remedy: str = ""
    """What to do to have a name allowed; ``{module}`` stands for the module."""

    def allows(self, spec: str) -> bool:
        """True if ``spec`` may be followed."""
        if self.modules is None or spec in self.modules:
            return True
        return self._allows_module(spec.partition(":")[0])

    def resolve(self, spec: str, *, error: type[InputError]) -> Callable[..., Any]:
        """The callable named by ``spec``; ``error`` says which part of the name leads nowhere."""
        module_name, _, attribute = spec.partition(":")
        is_wanted = module_name and attribute
        if not is_wanted or (self.modules is not None and not _SPEC.fullmatch(spec)):
            raise error(f"Expected package.module:factory, got {spec!r}.")
        if not self.allows(spec):
            raise error(f"{spec!r} names code that is not trusted here. {self._advice(spec)}")
        target: Any = self._module(spec, error)
        for part in attribute.split("."):
            if not hasattr(target, part):
                public = [name for name in vars(target) if not name.startswith("_")]
                has = ", ".join(public) or "nothing"
                raise error(f"{spec!r}: {module_name} has no {attribute!r}. It has: {has}.")
            target = getattr(target, part)
        if not callable(target):
            raise error(f"{spec!r}: expected a function or a class, found {type(target).__name__}.")
        home = str(getattr(target, "__module__", ""))
        if self.modules is not None and spec not in self.modules and not self._allows_module(home):
            raise error(
                f"{spec!r} is code of {home!r}, which is not trusted here. {self._advice(spec)}"
            )
        resolved: Callable[..., Any] = target
        return resolved

    def _advice(self, spec: str) -> str:
        return self.remedy.replace("{module}", spec.partition(":")[0])

    def _allows_module(self, name: str) -> bool:
        listed = self.modules or ()
        return any(name == entry or name.startswith(f"{entry}.") for entry in listed)

    def _module(self, spec: str, error: type[InputError]) -> ModuleType:
        name = spec.partition(":")[0]
        with self._search_path():
            importlib.invalidate_caches()
            try:
                if not self.here:
                    self._check_loaded(name, error)
                module = importlib.import_module(name)
            except InputError:
                raise
            except Exception as problem:
                said = f"importing {name} raised {type(problem).__name__}: {problem}"
                missing = f"{getattr(problem, 'name', None)}."
                is_absent = isinstance(problem, ModuleNotFoundError)
                # A module that is missing inside the user's module is another matter.
                if is_absent and f"{name}.".startswith(missing):
                    said = (
                        f"no module {missing[:-1]!r}. Expected package.module:factory, "
                        f"{self._places()}."
                    )
                raise error(f"{spec!r}: {said}") from problem
        return module

    def _places(self) -> str:
        if self.here:
            return f"importable from {Path.cwd()} or installed"
        places = ["installed", *(f"in {folder}" for folder in self.folders)]
        return f"{' or '.join(places)} (the current directory is not searched)"

    @contextmanager
    def _search_path(self) -> Iterator[None]:
        """Put the places on the import path. They stay there: the user's code may import its
        neighbours later. Unless ``here``, the current directory is off it meanwhile."""
        if self.here:
            here = str(Path.cwd())
            if here not in sys.path:
                sys.path.insert(0, here)
            yield
            return
        for folder in map(str, self.folders):
            if folder not in sys.path:
                sys.path.append(folder)
        before = list(sys.path)
        sys.path[:] = [entry for entry in before if not self._is_surprise(Path(entry))]
        try:
            yield
        finally:
            sys.path[:] = before

    def _is_surprise(self, folder: Path) -> bool:
        """True for the current directory, unless ``folders`` has it."""
        try:
            here = Path.cwd().resolve()
        except FileNotFoundError:  # it was removed
            return str(folder) == "."
        wanted = [each.resolve() for each in self.folders]
        return folder.resolve() == here and here not in wanted

    def _check_loaded(self, name: str, error: type[InputError]) -> None:
        """Refuse a module that something else has loaded from the current directory."""
        module = sys.modules.get(name.partition(".")[0])
        if module is None:
            return
        places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
        for place in places:
            if place is not None and self._is_surprise(Path(place).parent):
                raise error(
                    f"{name!r} was loaded from the current directory, {Path.cwd()}, which is not "
                    "trusted here. Start the program in another directory."
                )


INSTALLED = Imports()
"""Any name, of what is installed."""

HERE = Imports(here=True)
"""Any name, the current directory first: for what the user of this machine names."""


@dataclass(frozen=True)
class Code:
    """The code that names in an institution's own settings, and in what was agreed, may lead to."""

    own: Imports
    agreed: Imports


ALL = Code(HERE, HERE)
"""The code of a simulation: whatever its user's config names."""


def resolve(spec: str, *, error: type[InputError]) -> Callable[..., Any]:
    """The callable that the user of this machine names by ``spec``."""
    return HERE.resolve(spec, error=error)


@contextmanager
def translate_errors(error: type[InputError], what: str) -> Iterator[None]:
    """Whatever the user's own code raises, as an ``error`` that begins with ``what``."""
    try:
        yield
    except InputError:
        raise
    except Exception as problem:
        raise error(f"{what} {type(problem).__name__}: {problem}") from problem
