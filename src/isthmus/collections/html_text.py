"""Title and text of an HTML page, in time linear in its length whatever is in it.

Python's own parser takes quadratic time for tags, comments and declarations that are not closed.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from html import unescape

_HIDDEN = frozenset(("script", "style", "template", "noscript", "title"))
_FURNITURE_ENDS = re.compile("</(nav|footer|dialog|button|select)", re.IGNORECASE)
_INLINE = frozenset(
    ("a", "abbr", "b", "bdi", "cite", "code", "em", "i", "kbd", "mark", "q", "s", "small", "span",
     "strong", "sub", "sup", "u")
)  # fmt: skip
# What is not closed goes on to the end of the page, so that no part of it is looked at again.
_MARKUP = re.compile(
    r"""<(?:
      !--(?:.*?--\s*+>|.*)                                    # a comment
    | !\[CDATA\[(?:.*?]]>|.*)
    | /\s*+(?P<end>[a-zA-Z][^\t\n\r\f />]*+)[^>]*+>?
    | [!?/][^>]*+>?                                           # a declaration, an instruction
    | (?P<start>[a-zA-Z][^\t\n\r\f />]*+)
      (?: [^>=/]++ | /(?!>)                                   # names of attributes
        | =+\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+      # their values
      )*+
      (?P<closed>/?)>?
    )""",
    re.VERBOSE | re.DOTALL,
)
_RAW = {  # elements in which nothing is markup but their end
    name: re.compile(rf"</\s*+{name}\s*+>", re.IGNORECASE) for name in ("script", "style")
}
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
_LONGEST_HEADING = 300  # characters: what is longer is no heading, whatever its tags
_HEAD = 4096  # bytes in which a page declares its encoding
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_DECLARED = re.compile(
    rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)|<meta[^>]*?[\s;"']charset\s*=\s*["']?([\w.:-]+)""",
    re.IGNORECASE,
)
_SINGLE_BYTE = ["koi8-r", "koi8-u", "cp866", "mac-roman", "mac-cyrillic"]
_SINGLE_BYTE += [f"cp125{number}" for number in range(9)]
_SINGLE_BYTE += [f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)]
_ENCODINGS = {name: name for name in (*_SINGLE_BYTE, "euc_jp", "iso2022_jp", "big5", "gb18030")} | {
    # As browsers read them: what is declared is often a part of what was written.
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "cp874": "cp874", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "cp932": "cp932", "euc_kr": "cp949", "cp949": "cp949",
}  # fmt: skip
"""What is read of what Python calls an encoding; the rest counts as UTF-8."""
_NO_CHARACTER = re.compile(r"&#[0-9]{99,};?")  # more digits than Python may make a number of


def read_html(source: str) -> tuple[str, str]:
    """The title of a page and what a reader sees of it, a line for each block.

    Of a page that marks its main content, that alone; never menus, footers and buttons. Headings
    are marked as in Markdown, by one # to six.
    """
    titles: list[str] = []
    texts: list[str] = []  # \0 stands where a block begins or ends, \1 before a heading
    inside: Counter[str] = Counter()
    place = heading = main = 0
    main_end: int | None = None
    closed_last = {end[1].lower(): end.start() for end in _FURNITURE_ENDS.finditer(source)}
    while place < len(source):
        markup = _MARKUP.search(source, place)
        data = source[place : markup.start() if markup else None]
        if not inside.total():
            texts.append(_characters(data).replace("\0", " ").replace("\1", " "))
        elif inside.total() == 1 and inside["title"]:
            titles.append(_characters(data))
        if markup is None:
            break
        place = markup.end()
        tag = (markup["start"] or markup["end"] or "").lower()
        if not tag or (markup["closed"] and tag in _HIDDEN):
            continue
        if markup["start"] and tag in _RAW:
            end = _RAW[tag].search(source, place)
            place = end.end() if end else len(source)
        elif markup["start"] and (tag in _HIDDEN or place <= closed_last.get(tag, -1)):
            inside[tag] += 1
            texts.append("\0" if tag in ("nav", "footer", "dialog") else "")
        elif markup["end"] and inside[tag]:
            inside[tag] -= 1
        elif tag in _HEADINGS and markup["start"]:
            texts.append("\0")
            heading = len(texts)
        elif tag in _HEADINGS and heading:
            texts[heading:] = [_heading(int(tag[1]), "".join(texts[heading:])), "\0"]
            heading = 0
        elif tag not in _INLINE:
            texts.append("\0")
            if tag == "main" and markup["start"] and not main:
                main, heading = len(texts), 0
            elif tag == "main" and markup["end"] and main and main_end is None:
                main_end, heading = len(texts), 0
    text = _joined(texts[main:main_end]) or _joined(texts)
    return " ".join("".join(titles).split()), text


def decoded_html(page: bytes) -> str:
    """The page in the encoding that it declares, or else in UTF-8; raises UnicodeDecodeError."""
    encoding = _declared_encoding(page)
    if encoding != "cp1252":
        return page.decode(encoding)
    try:  # what templates declare of pages that have been in UTF-8 for long
        return page.decode("utf-8")
    except UnicodeDecodeError:
        # Five of its bytes stand for no character; browsers read them as control characters.
        return "".join(_WESTERN[byte] for byte in page)


_WESTERN = [bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256)]


def _declared_encoding(page: bytes) -> str:
    found = _DECLARED.search(_COMMENT.sub(b"", page[:_HEAD]))
    if found is None:
        return "utf-8"
    try:
        name = codecs.lookup((found[1] or found[2]).decode("ascii", "replace")).name
    except LookupError:
        return "utf-8"
    return _ENCODINGS.get(name, "utf-8")


def _joined(texts: list[str]) -> str:
    lines = (_line(" ".join(line.split())) for line in "".join(texts).split("\0"))
    return "\n".join(line for line in lines if line)


def _heading(level: int, content: str) -> str:
    """A heading in one line, without the sign that links to it; content that is none as it is."""
    line = " ".join(content.replace("\0", " ").split()).rstrip(" ¶")
    return f"\1{'#' * level} {line}" if 0 < len(line) <= _LONGEST_HEADING else content


def _line(line: str) -> str:
    """A line of text; the # of a shell's prompt is moved, so that it begins no heading."""
    return line[1:] if line.startswith("\1") else f" {line}" if line.startswith("#") else line


def _characters(data: str) -> str:
    return unescape(_NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", data))
