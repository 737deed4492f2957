"""What a terminal shows of the sequences that were sent to it: enough of ECMA-48 for `pgpu top`."""

import re
from codecs import getincrementaldecoder

from pgpu.cli.output.plain_table import cell_width

_SEQUENCE = re.compile(
    r"\x1b\[([0-9;]*)([A-Za-z])|\x1b\[[<-?][0-9;$]*[A-Za-z]|\x1b[P\]].*?(?:\x07|\x1b\\)|\x1b[^\[P\]]|(\n)|(.)",
    re.DOTALL,
)
_Cell = tuple[str, str]


class TerminalScreen:
    """Characters by line and column, each with its parameters of SGR."""

    def __init__(self, columns: int, lines: int) -> None:
        self._size = columns, lines
        self.cells: dict[tuple[int, int], _Cell] = {}
        self._line = self._column = 0
        self._style: dict[str, str] = {}
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Take what was sent."""
        text = self._rest + self._decoder.decode(data)
        end = 0
        for found in _SEQUENCE.finditer(text):
            end = found.end()
            parameters, final, _, character = found.groups()
            if character == "\x1b":  # a sequence that is not complete
                end = found.start()
                break
            if character is not None and character.isprintable():
                self._put(character)
            elif final is not None:
                self._obey(final, [int(each or 0) for each in parameters.split(";")])
        self._rest = text[end:]

    def _put(self, character: str) -> None:
        width = cell_width(character)
        if not width:
            before = self._line, self._column - 1
            self.cells[before] = self.cells[before][0] + character, self.cells[before][1]
            return
        style = " ".join(each for _, each in sorted(self._style.items()))
        for place in range(width):
            self.cells[self._line, self._column + place] = ("" if place else character), style
        self._column += width

    def _obey(self, final: str, numbers: list[int]) -> None:
        if final == "H":
            self._line, self._column = (max(each, 1) - 1 for each in (*numbers, 1)[:2])
        elif final == "G":
            self._column = max(numbers[0], 1) - 1
        elif final == "J":
            self.cells.clear()
        elif final == "m":
            self._set_style(numbers)

    def _set_style(self, numbers: list[int]) -> None:
        while numbers:
            code = numbers.pop(0)
            if code == 0:
                self._style.clear()
            elif code in {38, 48}:
                count = 4 if numbers[0] == 2 else 2
                self._style["front" if code == 38 else "back"] = f"{code}:{':'.join(map(str, numbers[:count]))}"
                del numbers[:count]
            elif code in {39, 49}:
                self._style.pop("front" if code == 39 else "back", None)
            else:
                kind = (
                    "front"
                    if code in {*range(30, 38), *range(90, 98)}
                    else "back"
                    if code in {*range(40, 48), *range(100, 108)}
                    else f"attribute {code}"
                )
                self._style[kind] = str(code)

    @property
    def lines(self) -> list[str]:
        """The text of each line, without the blanks behind it."""
        columns, lines = self._size
        return [
            "".join(self.cells.get((line, column), (" ", ""))[0] for column in range(columns)).rstrip()
            for line in range(lines)
        ]

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)
