"""The tables of a run."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from definitions import Case

PACKAGES = ("torch", "jax", "numpy", "scipy")


def header() -> Iterator[str]:
    """Yield the date, what is installed of all that takes part, and the machine."""
    found = {one.name for one in importlib.metadata.distributions()}
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if name in found]
    today = dt.datetime.now(tz=dt.UTC).date()
    yield f"{today}  Opwright {importlib.metadata.version('opwright')}, {', '.join(versions)}"
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield f"Python {platform.python_version()}, {system}"


def lines(
    cases: Sequence[Case], results: Mapping[str, Any], left_out: Mapping[str, Counter[str]]
) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from header()
    yield from ["", "WRONG OPERATORS", *_wrong(cases, results)]
    yield from ["", "by law that may find the fault", *_by_law(cases, results)]
    yield from ["", "RIGHT OPERATORS", *_right(cases, results)]
    yield from ["", "TIME, processor seconds for one operator", *_time(cases, results)]
    yield from ["", "left out by the criteria", *_left_out(left_out)]
    yield from ["", "NOT CAUGHT", *_missed(cases, results)]
    yield from ["", "CAUGHT, BUT NOT BY ITS LAW, OR WITHOUT THE CAUSE IN WORDS", *_elsewhere(cases, results)]
    yield from ["", "SNIPPETS", *_snippets(cases, results)]
    yield from ["", "FALSE ALARMS", *_alarms(cases, results)]
    yield from ["", "FALSE ALARMS OF torch.library.opcheck", *_torch_alarms(cases, results)]
    yield from ["", "TRUE OF THE LIBRARIES' OWN FUNCTIONS", *_true_alone(cases, results)]


def good(cases: Sequence[Case], results: Mapping[str, Any]) -> bool:
    """Return whether every fault was caught by its law and no alarm raised."""
    return all(
        by_law(case, results[case.id]) if case.wrong else not alarms(results[case.id]) for case in cases
    )


# ------------------------------------------------------------------------------------------ what was found


def findings(result: Mapping[str, Any]) -> list[Any]:
    """Return our findings in a case."""
    return list(result.get("ours", {}).get("findings", ()))


def refused(result: Mapping[str, Any]) -> str:
    """Return how the definition, or opcheck itself, refused the operator; empty where it did not."""
    return str(result.get("ours", {}).get("refused", ""))


def caught(result: Mapping[str, Any]) -> bool:
    """Return whether anything is found in a wrong operator."""
    return bool(findings(result) or refused(result))


def by_law(case: Case, result: Mapping[str, Any]) -> bool:
    """Return whether a finding is of a law that may find the fault, or the definition was refused."""
    return bool(refused(result)) or any(one["law"] in case.laws for one in findings(result))


def named(case: Case, result: Mapping[str, Any]) -> bool:
    """Return whether the cause is in the words of a finding of such a law."""
    texts = [one["what"] for one in findings(result) if one["law"] in case.laws]
    return bool(refused(result)) or any(case.words in text for text in texts)


def true_alone(result: Mapping[str, Any]) -> list[str]:
    """Return what was said of a right operator and holds for the library's own function too."""
    crashed = [f"crashes the process alone too: {result['alone']}"] if result.get("alone") else []
    return [*crashed, *(_told(one) for one in findings(result) if one.get("confirmed"))]


def _told(found: Mapping[str, Any]) -> str:
    return f"{found['id']} {found['framework']}: {found['what']}; {found['got']}; {found['sample']}"


def alarms(result: Mapping[str, Any]) -> list[str]:
    """Return what was said of a right operator, unless it is true of torch's own functions."""
    if "crashed" in result:
        return [] if result.get("alone") else [f"crashed: {result['crashed']}"]
    ours = result["ours"]
    texts = [f"refused: {ours['refused']}"] if "refused" in ours else []
    texts += [_told(one) for one in findings(result) if not one.get("confirmed")]
    return texts + [
        f"errored: {one.strip().splitlines()[-1]} ({one.splitlines()[0]})" for one in ours.get("errored", ())
    ]


def torch_alarms(result: Mapping[str, Any]) -> list[str]:
    """Return what torch's checker said, unless it is true; a twin that cannot be defined counts."""
    theirs = result.get("torch") or {}
    if "refused" in theirs:
        return [f"refused: {theirs['refused']}"]
    if theirs.get("confirmed"):
        return []
    return [f"{name}: {text}" for name, text in theirs.get("failed", {}).items()]


def has_twin(result: Mapping[str, Any]) -> bool:
    """Return whether torch's checker looked at the case."""
    return result.get("torch") is not None


# ---------------------------------------------------------------------------------------------- the tables


def _groups(cases: Sequence[Case], *, wrong: bool) -> Iterator[tuple[str, list[Case]]]:
    chosen = [case for case in cases if case.wrong == wrong]
    for group in dict.fromkeys(case.group for case in chosen):
        yield group, [case for case in chosen if case.group == group]
    yield "all", chosen


def _wrong(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    rows = [["set", "operators", "caught", "by its law", "cause named", "twins", "ours", "torch's opcheck"]]
    for group, own in _groups(cases, wrong=True):
        rows.append([group, *map(str, _wrong_counts(own, results))])
    yield from aligned(rows)
    yield "  'twins': those that torch.library can define too, and how many of them each checker catches"


def _wrong_counts(own: Sequence[Case], results: Mapping[str, Any]) -> list[int]:
    found = [(case, results[case.id]) for case in own]
    twins = [result for _, result in found if has_twin(result)]
    return [
        len(own),
        sum(caught(result) for _, result in found),
        sum(by_law(case, result) for case, result in found),
        sum(named(case, result) for case, result in found),
        len(twins),
        sum(caught(result) for result in twins),
        sum(bool(torch_alarms(result)) for result in twins),
    ]


def _by_law(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    rows = [["law", "operators", "caught", "by its law", "cause named", "twins", "ours", "torch's opcheck"]]
    wrong = [case for case in cases if case.wrong]
    for law in dict.fromkeys(case.laws[0] for case in wrong):
        own = [case for case in wrong if case.laws[0] == law]
        rows.append([law, *map(str, _wrong_counts(own, results))])
    return aligned(rows)


def _right(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    rows = [["set", "operators", "false alarms", "true of it", "twins", "ours", "torch's opcheck"]]
    for group, own in _groups(cases, wrong=False):
        found = [results[case.id] for case in own]
        twins = [result for result in found if has_twin(result)]
        counts = [
            len(own),
            sum(bool(alarms(result)) for result in found),
            sum(bool(true_alone(result)) for result in found),
            len(twins),
            sum(bool(alarms(result)) for result in twins),
            sum(bool(torch_alarms(result)) for result in twins),
        ]
        rows.append([group, *map(str, counts)])
    yield from aligned(rows)
    yield "  'true of it': something is said that the function of torch or SciPy shows by itself"


def _time(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    rows = [["set", "ours", "ours, on the laws that both have", "torch's opcheck", "ratio on these"]]
    for group, own in [*_groups(cases, wrong=False)]:
        found = [results[case.id] for case in own]
        ours = [one["ours"]["seconds"] for one in found if "ours" in one]
        both = [
            one for one in found if has_twin(one) and "shared" in one["ours"] and "failed" in one["torch"]
        ]
        shared = [one["ours"]["shared"] for one in both]
        theirs = [one["torch"]["seconds"] for one in both]
        ratio = f"{_median(shared) / _median(theirs):.2f}" if both else ""
        texts = [f"{_median(ours):.3f}" if ours else ""]
        texts += [f"{_median(shared):.3f}", f"{_median(theirs):.3f}"] if both else ["", ""]
        rows.append([group, *texts, ratio])
    yield from aligned(rows)
    yield "  medians"


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _left_out(left_out: Mapping[str, Counter[str]]) -> Iterator[str]:
    for group, counts in left_out.items():
        for why, count in counts.most_common():
            yield f"  {group}: {count} {why}"


def _missed(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    for case in cases:
        result = results[case.id]
        if case.wrong and not caught(result):
            crashed = f", crashed: {result['crashed']}" if "crashed" in result else ""
            yield f"  {case.id} ({', '.join(case.laws)}){crashed}"


def _elsewhere(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    for case in cases:
        result = results[case.id]
        if case.wrong and caught(result) and not (by_law(case, result) and named(case, result)):
            texts = dict.fromkeys(f"{one['id']} {one['what']}" for one in findings(result))
            yield f"  {case.id} ({', '.join(case.laws)}): {'; '.join(texts)}"


def _snippets(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    told = [(case, one) for case in cases for one in findings(results[case.id])]
    bad = [(case, one) for case, one in told if one["snippet_error"]]
    good = len(told) - len(bad)
    yield f"  {len(told)} findings in all; the snippet runs to the end, or raises what is told, in {good}"
    for case, one in bad:
        yield f"  {case.id}: {one['id']} {one['what']}: {' '.join(one['snippet_error'].split())[:160]}"


def _alarms(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    for case in cases:
        for text in [] if case.wrong else alarms(results[case.id]):
            yield f"  {case.id}: {text}"


def _true_alone(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    for case in cases:
        for text in [] if case.wrong else true_alone(results[case.id]):
            yield f"  {case.id}: {text}"


def _torch_alarms(cases: Sequence[Case], results: Mapping[str, Any]) -> Iterator[str]:
    for case in cases:
        for text in [] if case.wrong else torch_alarms(results[case.id]):
            yield f"  {case.id}: {' '.join(text.split())[:160]}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines, their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = (
            t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *rest])
