"""The mutants of the core's headers: each takes one ordering, fence or step away, so that the explorer has to notice.

Weakened memory orders are generated from the headers' text; the changed steps are listed in steps.txt. Both refer to
the code as it stands: a change there that a mutant no longer fits is an error, so the list cannot fall behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

STEPS = Path(__file__).with_name("steps.txt")
TOPICS_OF = {
    "atomic.h": ("ring", "semaphore"),
    "ring.h": ("ring",),
    "cells.h": ("cells",),
    "semaphore.h": ("semaphore", "pool"),
    "channel.h": ("clock", "pool"),
}
"""Header: the topics of the explorer that a change to it is tried on, in this order."""

_NEEDLESS = "costs wake-up calls that nobody needs, and nothing else"
EQUIVALENT: dict[str, str] = {
    "shm_await_counter: leaves the flag up": _NEEDLESS,
    "shm_await_bell: leaves the flag up": _NEEDLESS,
    "shm_await_version: stays in the count": _NEEDLESS,
    "shm_post: closes the gate by a store": _NEEDLESS,
    "shm_reset_worker: leaves the flag up": _NEEDLESS,
}
"""Name of a mutant that behaves as the original does: why."""

_WEAKER: dict[str, dict[str, tuple[str, ...]]] = {
    "LOAD": {"seq_cst": ("acquire", "relaxed"), "acquire": ("relaxed",)},
    "STORE": {"seq_cst": ("release", "relaxed"), "release": ("relaxed",)},
    "ADD": {"seq_cst": ("acq_rel", "relaxed"), "acq_rel": ("relaxed",)},
    "SWAP": {"seq_cst": ("acq_rel", "relaxed"), "acq_rel": ("relaxed",)},
    "FENCE": {"acquire": ("relaxed",), "release": ("relaxed",)},
}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"^static inline [\w *]*?\b(shm_\w+)\(", re.MULTILINE)
_ORDER = re.compile(r"\b(?:acquire|release|acq_rel|seq_cst)\)")
_ACCESS = re.compile(
    r"SHM_(LOAD|STORE|ADD|SWAP|FENCE)\((?:(?:(?!SHM_[A-Z]+\()[^;{}])*?, )?(acquire|release|acq_rel|seq_cst)\)"
)


@dataclass(frozen=True)
class Mutant:
    """One change to one header: what it is about, and the header's whole text with it."""

    name: str
    header: str
    text: str


def bare(text: str) -> str:
    """A header's code without comments, indentation and empty lines, so that layout does not matter."""
    lines = (line.strip() for line in _COMMENT.sub("", text).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def weakened_orders(header: str, code: str) -> list[Mutant]:
    """Each order that is stronger than relaxed, replaced by each weaker one that fits the operation."""
    functions = [(match.start(), match.group(1)) for match in _FUNCTION.finditer(code)]
    mutants: list[Mutant] = []
    seen: dict[str, int] = {}
    accesses = list(_ACCESS.finditer(code))
    if len(accesses) != len(_ORDER.findall(code)):
        raise LookupError(f"{header}: a memory order stands where no access is recognised")
    for access in accesses:
        operation, order = access.groups()
        function = [name for start, name in functions if start < access.start()][-1]
        where = f"{function}: {access.group()}"
        seen[where] = seen.get(where, 0) + 1
        number = f" #{seen[where]}" if seen[where] > 1 else ""
        for weaker in _WEAKER[operation][order]:
            changed = code[: access.start(2)] + weaker + code[access.end(2) :]
            mutants.append(Mutant(f"{where}{number} -> {weaker}", header, changed))
    return mutants


def changed_steps(codes: dict[str, str]) -> list[Mutant]:
    """The mutants of steps.txt, for the headers' code by name."""
    mutants = []
    for entry in re.split(r"^@ ", STEPS.read_text(), flags=re.MULTILINE)[1:]:
        title, *lines = entry.splitlines()
        header, name = title.split(" ", 1)
        old, new = ("".join(line[1:].strip() + "\n" for line in lines if line.startswith(sign)) for sign in ("-", "+"))
        places = ("\n" + codes[header]).count("\n" + old)
        if places != 1:
            raise LookupError(f"steps.txt, {title}: the lines to go stand in the header {places} times:\n{old}")
        mutants.append(Mutant(name, header, ("\n" + codes[header]).replace("\n" + old, "\n" + new)))
    return mutants


def all_mutants(headers: Path) -> list[Mutant]:
    """Every mutant of the headers in this folder, those of one header together.

    Raises:
        LookupError: steps.txt or EQUIVALENT no longer fits the headers.
    """
    codes = {header: bare((headers / header).read_text()) for header in TOPICS_OF}
    mutants = [mutant for header, code in codes.items() for mutant in weakened_orders(header, code)]
    mutants += changed_steps(codes)
    names = [mutant.name for mutant in mutants]
    strangers = sorted(set(EQUIVALENT) - set(names))
    if strangers or len(set(names)) != len(names):
        raise LookupError(f"a name that stands twice, or no mutant is called {strangers}")
    return sorted(mutants, key=lambda mutant: list(TOPICS_OF).index(mutant.header))
