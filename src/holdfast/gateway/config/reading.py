"""A configuration file as text: parsed, with the line of every key, and the mistakes found in it so far."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from holdfast.client.files import parse_json
from holdfast.errors import ConfigError

DEEPEST = 12  # levels of the file whose lines are known: settings are nowhere deeper


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, where, and what helps."""

    line: int | None
    where: str
    what: str
    remedy: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        thing = f"{self.where}: " if self.where else ""
        return f"{place}{thing}{self.what}" + (f"; {self.remedy}" if self.remedy else "")


class Reading:
    """One file while it is read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.mistakes: list[Mistake] = []
        self._lines: dict[tuple[str, ...], int] = {}

    def add(self, at: tuple[str, ...], what: str, remedy: str | None = None) -> None:
        """Note a mistake at a key, with the line of that key or of the nearest one above it."""
        line = next((self._lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self._lines), None)
        self.mistakes.append(Mistake(line, ".".join(at), what, remedy))

    def parse(self) -> dict[str, Any] | None:
        """The file as a mapping; None if it is not one, which is noted as a mistake."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            self.add((), f"the file can't be read: {(error.strerror or str(error)).lower()}")
            return None
        except UnicodeDecodeError:
            self.add((), "the file is not UTF-8 text")
            return None
        document: object
        try:
            if self.path.suffix.lower() in (".yaml", ".yml"):
                document = yaml.safe_load(text)
                node = _compose(text)
            else:
                document, blanked = parse_json(text, self.path)
                node = _compose(blanked.replace("\t", " "))
        except ConfigError as error:
            self.add((), error.what, error.remedy)
            return None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            what = f"this is not YAML: {error.problem or error}"
            self.mistakes.append(Mistake(mark.line + 1 if mark else None, "", what, "correct the file there"))
            return None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            self.add((), f"this can't be read: {str(error)[:200]}")
            return None
        self._note_lines(node, ())
        if not isinstance(document, dict):
            self.add((), "the file is not a mapping", 'write {"mcpServers": {…}}, or the same as YAML')
            return None
        return cast("dict[str, Any]", document)

    def _note_lines(self, node: Any, at: tuple[str, ...]) -> None:
        if len(at) > DEEPEST:
            return
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._lines[*at, str(number)] = item.start_mark.line + 1
                self._note_lines(item, (*at, str(number)))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path = (*at, str(key.value))
                first = self._lines.get(path)
                self._lines[path] = key.start_mark.line + 1
                if first is not None:
                    self.add(path, f"the key occurs twice, first in line {first}", "keep one")
                self._note_lines(value, path)


def _compose(text: str) -> Any:
    return cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
