"""Words that the project does not use, since no other project of the field does, and what stands for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TEXTS = ("supervisor/**/*.py", "plugins/**/*.py", "etc/**/*", "docs/**/*", "README.md")
SCHEMAS_OF_OLDER_VERSIONS = "migrations.py"
"""They have to name tables and columns as an older version did."""

WORDS = {
    "nursery|nurseries": "forkserver",
    "birth|births|born|unborn|stillborn": "start, started, failed to start",
    "bury|buries|buried": "reap",
    "bell|bells": "notifier",
    "ring|rings|rang|rung|ringing": "notify",
    "hush": "clear",
    "rope|mouth": "write end",
    "turnstile|gate": "fair write lock",
    "lifeline|life pipe": "owner lock; parent-death pipe",
    "lapse|lapses|lapsed|lapsing": "lease expiry, expired, expired_count",
    "letter|letters": "dead letter",
    "outlet|outlets": "sink runner",
    "doom|dooms|doomed|condemn|condemned": "kill reason, kill",
    "captive|captives": "blocked job",
    "stranger|strangers|absence|absences|sighting|sightings": "job with an unknown handler, missing handler, seen",
    "lane|lanes": "queue buffer",
    "credit|credits": "token bucket",
    "pace|tick|ticks|ticking|news": "poll intervals, periodic timer, changes",
    "ear|hand": "listener, executor",
    "heart|hearts|beat|beats|beating": "heartbeat",
    "least harm|surroundings": "what it measures, process state",
    "stray|strays|landed|masterless": "orphans",
    "tell|tells|told|telling|hear|hears|heard|say|says|said|saying|word|words": "emit, report, log; receive; message",
    "insist|insists|patience|patiently": "retry while unavailable; timeout",
    "away|is back|are back": "unavailable, available again",
    "wary|floor|floors|spare|guest|guests": "skip-locked mode, claim cursor, scratch schema, transactional enqueue",
    "shelf|shelves|kept job|kept letter|kept owner": "memory state, records",
    "verdict|verdicts|verb|verbs|asking": "operator results, operator commands, queries",
    "moves|moving|ticket|tickets|shut": "transitions, transfer, transfer record, closed",
    "shape|shapes|bounds": "records, limits",
    "weight|weights|weigh|weighs|weighed|heavy|heavier": "bytes, large",
    "give back|gives back|gave back|given back|giving back": "release",
    "put back|puts back|putting back": "requeue, restore",
    "take back|takes back|took back|taken back|taking back": "reclaim",
    "let go|lets go|letting go": "release",
}
CONSTANTS = re.compile(r"\b[A-Z_]*(?:MOST_[A-Z]|[A-Z]_MOST\b|LONGEST|[A-Z]_LEAST\b|LEAST_[A-Z])[A-Z_]*")
RIDDLES = ("what", "those", "one that", "whoever", "whose", "whom")
"""No docstring begins with these: it begins with a verb, or with the noun that it defines."""

_WORDS = re.compile(r"(?<![a-z])(?:" + "|".join(WORDS) + r")(?![a-z])")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMES_OF_OTHERS = re.compile(r"\.floor\(\)|celery beat")  # a method in the JSON paths of PostgreSQL, and a command
_DOCSTRING = re.compile(r'^\s*"""\s*(?:' + "|".join(RIDDLES) + r")\b", re.IGNORECASE)


class Finding(NamedTuple):
    file: Path
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.word!r}: {self.text.strip()[:120]}"


def texts() -> list[Path]:
    found = {
        path for pattern in TEXTS for path in ROOT.glob(pattern) if path.is_file() and "__pycache__" not in path.parts
    }
    return sorted(
        path for path in found if path.name != SCHEMAS_OF_OLDER_VERSIONS and path.suffix not in (".png", ".svg")
    )


def findings() -> Iterator[Finding]:
    """Every place where one of the words stands, in names as well as in sentences."""
    for path in texts():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in _found(line):
                yield Finding(path, number, word, line)


def _found(line: str) -> Iterator[str]:
    plain = re.sub(r"[\W_]+", " ", _HUMPS.sub(" ", _NAMES_OF_OTHERS.sub("", line))).lower()
    plain = plain.replace("dead letter", "deadletter")
    for match in _WORDS.finditer(plain):
        yield match[0]
    for match in CONSTANTS.finditer(line):
        yield match[0]
    if match := _DOCSTRING.match(line):
        yield match[0].strip()
