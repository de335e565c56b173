"""Resolving a command line: the file that it names, its environment, and its text with secrets masked.

Errors name the command, where it was searched for and what to do. There is no shell.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import ConnectFailed

SAFE_ENVIRONMENT = (
    ("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE",
     "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE")
    if os.name == "nt"
    else ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
)  # fmt: skip
"""The variables of this process's environment that a child always gets: enough to run, and no secrets."""

MASK = "•••"
_SECRET = re.compile(r"(?i)(token|secret|passw|api[-_]?key|\bkey\b|auth|credential)")


def environment(named: Mapping[str, str]) -> dict[str, str]:
    """The safe part of this process's environment, and the declared variables."""
    ours = {name: value for name in SAFE_ENVIRONMENT if (value := os.environ.get(name)) is not None}
    # Exported shell functions are code, not settings.
    return {name: value for name, value in {**ours, **named}.items() if not value.startswith("()")}


class Missing(Exception):
    """A command that can't run here: the reason and the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


def find(command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, server: str) -> str:
    """The file to run. Raises `ConnectFailed` with the reason if there is none."""
    try:
        return located(command, env, cwd)
    except Missing as missing:
        raise _no(server, masked(command, args, env), missing.why, missing.remedy) from None


def located(command: str, env: Mapping[str, str], cwd: str | None) -> str:
    """The file that a command names. Raises `Missing` if there is none."""
    if cwd is not None and not Path(cwd).is_dir():
        raise Missing(f"its cwd {cwd} is not a folder", "give a folder that exists as cwd")
    path = env.get("PATH", os.defpath)
    if os.sep in command or (os.altsep and os.altsep in command):
        place = Path(cwd or ".", command) if not Path(command).is_absolute() else Path(command)
        if place.is_dir():
            raise Missing(f"{command} is a folder", "name the program in it")
        if not place.exists():
            raise Missing(f"the file {place} does not exist", "check the path; a relative path starts at cwd")
        if not os.access(place, os.X_OK):
            raise Missing(f"{place} is not executable", f"chmod +x {place}")
        _check_interpreter(str(place), path)
        return str(place.absolute())  # otherwise the system would search PATH, or apply cwd twice
    found = shutil.which(command, path=path)
    if found is None:
        folders = path.split(os.pathsep)
        looked = ", ".join(folders[:8]) + (f" and {len(folders) - 8} more" if len(folders) > 8 else "")
        raise Missing(f"{command!r} was not found in PATH: {looked}", "install it, or give its full path as command")
    _check_interpreter(found, path)
    return str(Path(found).absolute())


def _check_interpreter(file: str, path: str) -> None:
    """Raise `Missing` if a script's first line names a program that does not exist."""
    line = _interpreter(file) if os.name != "nt" else None
    words = (line or "").split()
    if not words or not words[0].startswith("/"):
        return
    missing = None
    if not Path(words[0]).exists():
        missing = line
    elif words[0].endswith("/env") and len(words) == 2 and shutil.which(words[1], path=path) is None:
        missing = words[1]
    if missing is not None:
        raise Missing(f"its interpreter {missing} is missing", f"install it, or correct line 1 of {file}")


def failed_to_start(error: OSError, file: str, shown: str, server: str) -> ConnectFailed:
    """The system's error as `ConnectFailed`; the name of a missing interpreter is read from the file's first line."""
    if isinstance(error, FileNotFoundError) and (interpreter := _interpreter(file)):
        return _no(
            server, shown, f"its interpreter {interpreter} is missing", f"install it, or correct line 1 of {file}"
        )
    return _no(server, shown, str(error.strerror or error).lower(), "run it by hand to see more")


def _interpreter(file: str) -> str | None:
    try:
        with Path(file).open("rb") as opened:
            first = opened.readline(300)
    except OSError:
        return None
    return first[2:].strip().decode("utf-8", "replace") if first.startswith(b"#!") else None


def _no(server: str, shown: str, why: str, remedy: str) -> ConnectFailed:
    return ConnectFailed(f"{server!r} did not start: {why}; ran: {shown}", server=server, phase="open", remedy=remedy)


# An argument may be 128 KB of one word or of URLs and is masked at every start, so each pattern must be linear: a
# scheme begins a word, a URL is matched whole with or without a query, and a header's name has a maximum length.
_USERINFO = re.compile(r"((?<!\w)\w+://)[^/\s@]+@")
_QUERY = re.compile(r"((?<!\w)\w+://[^\s?#]*)([?#]\S+)?")  # whole, as for a declared URL
_HEADER = re.compile(
    r"^((?=[\w-]{0,200}?(?:token|secret|passw|key|auth|credential|cookie))[\w-]+\s*:\s*).+", re.IGNORECASE | re.DOTALL
)


def _without_query(found: re.Match[str]) -> str:
    return f"{found[1]}?{MASK}" if found[2] else found[0]


def masked(command: str, args: Sequence[str], env: Mapping[str, str]) -> str:
    """The command line for people, without values that look like secrets or are those of declared variables."""
    hidden = sorted((value for name, value in env.items() if name not in SAFE_ENVIRONMENT and len(value) > 3), key=len)
    shown: list[str] = [command]
    mask_next = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if mask_next and not arg.startswith("-"):
            text = MASK
        elif equals and _SECRET.search(name) and "://" not in name:
            text = f"{name}={MASK}"
        else:
            text = _HEADER.sub(rf"\1{MASK}", _QUERY.sub(_without_query, _USERINFO.sub(rf"\1{MASK}@", arg)))
            if equals and (found := _HEADER.match(value)):
                text = f"{name}={found.group(1)}{MASK}"
            for secret in reversed(hidden):
                text = text.replace(secret, MASK)
        shown.append(text if re.fullmatch(r"[\w@%+=:,./•?&-]+", text) else repr(text))
        mask_next = arg.startswith("-") and not equals and _SECRET.search(arg) is not None
    line = " ".join(shown)
    return line if len(line) <= 300 else f"{line[:300]}…"
