"""Attributes that are set once, for classes that promise something.

A promise is checked when an object is made. It holds afterwards only if what was checked is still
what is used.
"""

from typing import Any, ClassVar, SupportsIndex


class SetOnce:
    """Base of classes whose attributes are assigned in the constructor and never again.

    A second assignment, a deletion, and an attribute that would hide a method or property raise
    AttributeError. ``changing`` names the attributes that are state: no promise depends on them, or
    the class itself keeps them right. An object with such a state cannot be copied: two that count
    apart would each spend what was there once."""

    _changing: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, changing: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls._changing = cls._changing.union(changing)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._changing:
            inherited = getattr(type(self), name, None)
            settable = hasattr(inherited, "__set__")  # a property: it decides
            if name in vars(self) or (hasattr(type(self), name) and not settable):
                raise self._refusal(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise self._refusal(name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._changing:
            kind = type(self).__name__
            raise TypeError(
                f"A {kind} cannot be copied or pickled: what it has counted so far would count "
                f"twice. Make a new {kind}."
            )
        return super().__reduce_ex__(protocol)

    def _refusal(self, name: str) -> AttributeError:
        kind = type(self).__name__
        return AttributeError(
            f"{kind}.{name} is set once, because what {kind} promises depends on it. Make a new "
            f"{kind} with the value that you want."
        )
