"""Rules of English and of names that a machine can hold.

`python -m tests.style PATH ...` prints what breaks them; `test_style.py` holds the whole project.
"""

from __future__ import annotations

import ast
import io
import itertools
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# A docstring opens with a verb or a noun phrase, never with a clause that needs its surroundings.
OPENINGS = _set("""
    What Whose Who Whom Which Whether Where When How Why That Those They Them It Its
    And Or But So Also Of In By For From With Without To At On As Beyond Between
    Beside Within Into Onto Upon Over Under If Unless Until Because Since While
    Than Each Both Neither Either
""")
# A docstring may open with a formula or a signature.
CODE = re.compile(r"[\w.]+[(_:\[.=-]|[\w.]+ (?:=|->|is\b|in\b)|[a-z]\b")
# Sentences that open so, anywhere in a docstring or comment, want rewriting.
SENTENCES = re.compile(r"(?:(?<=[.;:] )|^)(?:Of|Whose|Those that|Those which|Of which)\b")

WORDS = {
    r"(?<!real-)\bworlds?\b(?! model| object)": "environment",
    r"\bdata sets?\b": "dataset",
    r"\bhyper-parameters?\b": "hyperparameter",
    r"\blearnt\b": "learned",
    r"\blaid aside\b": "aux",
    r"\b(?:un|mis)?spelt\b": "spelled",
    r"\bburnt\b": "burned",
    r"\bticks? of\b": "steps of",
    r"\bbehaviour": "behavior",
    r"\bcolour": "color",
    r"\bneighbour": "neighbor",
    r"\bfavour": "favor",
    r"\bhonour": "honor",
    r"\bcentred?\b": "center(ed)",
    r"\blabell(?:ed|ing)": "labeled",
    r"\bmodell(?:ed|ing)": "modeled",
    r"\bcancell(?:ed|ing)": "canceled",
    r"\btravell(?:ed|ing)": "traveled",
    r"\banalys(?:e|ed|es|ing)\b": "analyze",
    r"\bcatalogue": "catalog",
    r"\bgrey\b": "gray",
    r"\bmetres?\b": "meter",
    r"\bdefence\b": "defense",
    r"\bartefact": "artifact",
    r"\btowards\b": "toward",
    r"\bwhilst\b": "while",
    r"\bamongst\b": "among",
    r"\w*(?:optim|normal|regular|general|standard|maxim|minim|discret|vector|parameter|initial|penal"
    r"|random|factor|quant|recogn|organ|summar|util|real|special|stabil|character|symmetr|linear"
    r"|serial|token|visual|local|global|equal|formal|material|marginal|memor|emphas|categor"
    r"|synchron|custom|final|neutral|orthogonal|polar|prior|sanit|scrutin|tabular|trivial)"
    r"is(?:e|es|ed|er|ers|ing|ation|ations)\b": "-ize",
}
FORBIDDEN = {re.compile(pattern, re.IGNORECASE): say for pattern, say in WORDS.items()}
# Titles of papers and names of other people's code are quoted as they are.
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|`[^`]*`|https?://\S+|\bhttp\S+")
NOT_BRITISH = re.compile(r"\b(?:exercise|precise|concise|promise|premise|otherwise|noise|raise)")

# Words that end like participles and are none, or are the field's own names for what is returned.
NOT_PARTICIPLES = _set(
    "seed speed feed need embed bed red shared fixed mixed split put read set hit cut "
    "done terminated truncated"
)
IRREGULAR = _set("""drawn seen told said taken chosen known made given held kept
    shown spoken written met left
    begun learned grown sent built found thrown laid paid led won done gone bound wound spent lent
    bent meant""")

# The first sentence of a setting is its line of `--help`.
HELP = 160


def lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Every breach in a file, with its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from _prose(text)
        return
    tree = ast.parse(text)
    docstrings = list(_docstrings(tree))
    for node, line, said in docstrings:
        yield from _docstring(node, line, said)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
            yield (
                node.lineno,
                f"function '{node.name}' is a bare participle; name it by a verb or noun",
            )
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("# ")
            yield from _words(token.start[0], said)
            yield from _sentences(token.start[0], said)
        elif token.type == tokenize.NAME:
            yield from _words(token.start[0], token.string.replace("_", " "), token.string)
        elif token.type == tokenize.STRING and not token.string.lower().startswith(("b", "rb")):
            for i, line in enumerate(_without_titles(token.string).splitlines()):
                yield from _words(token.start[0] + i, line)


def _without_titles(string: str) -> str:
    """Return a docstring without what it quotes, such as titles of papers; its lines stay."""
    if not string.endswith('"""'):
        return string
    return re.sub('"[^"]*"', lambda quoted: "\n" * quoted.group().count("\n"), string[3:-3])


def is_participle(name: str) -> bool:
    word = name.strip("_")
    if "_" in word or word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3 and not word.endswith("eed"))


def _docstrings(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """Kind ("code" or "setting"), line and text of each docstring, those below fields included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said:
                yield "code", body[0].lineno, said
        if isinstance(node, ast.ClassDef):
            for before, after in itertools.pairwise(body):
                value = getattr(after, "value", None)
                text = value.value if isinstance(value, ast.Constant) else None
                said = isinstance(after, ast.Expr) and isinstance(text, str)
                if isinstance(before, ast.AnnAssign) and said:
                    yield "setting", after.lineno, text


def _docstring(kind: str, line: int, said: str) -> Iterator[tuple[int, str]]:
    text = " ".join(said.split("\n\n")[0].split())
    first = re.match(r"[A-Za-z']+", text)
    if first and first.group() in OPENINGS:
        yield line, f"a docstring opens with '{first.group()}': {text[:60]!r}"
    elif first and first.group()[0].islower() and not CODE.match(text):
        yield line, f"a docstring opens in lower case: {text[:60]!r}"
    sentence = re.split(r"(?<=[.])\s+(?=[A-Z(`])", text)[0]
    if kind == "setting" and len(sentence) > HELP:
        yield line, f"a setting's first sentence has {len(sentence)} characters, over {HELP}"
    for offset, row in enumerate(said.splitlines()):
        yield from _sentences(line + offset, row)


def _sentences(line: int, said: str) -> Iterator[tuple[int, str]]:
    if found := SENTENCES.search(said):
        yield line, f"a sentence opens with '{found.group()}': {said.strip()[:60]!r}"


def _words(line: int, said: str, name: str = "") -> Iterator[tuple[int, str]]:
    plain = QUOTED.sub("", said)
    for pattern, say in FORBIDDEN.items():
        found = pattern.search(plain)
        if found and not NOT_BRITISH.search(found.group()):
            yield line, f"'{name or found.group()}': say {say}"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for i, row in enumerate(text.splitlines(), 1):
        if row.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced:
            yield from _words(i, row)


def main(paths: list[str]) -> int:
    count = 0
    for given in paths:
        path = pathlib.Path(given)
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if file.suffix in (".py", ".md", ".yaml") and "__pycache__" not in file.parts:
                for line, said in sorted(set(lines(file))):
                    print(f"{file}:{line}: {said}")
                    count += 1
    print(f"{count} breaches", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
