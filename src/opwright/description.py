"""What there is to know of an operator: as data, and as the lines that ``opwright show`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright.frameworks.base import RULE_KINDS, Framework
from opwright.report import aligned
from opwright.scalars import expected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opwright.overload import OpOverload


def choices(record: OpOverload) -> dict[str, str]:
    """Return what the arguments that are annotated with a ``Literal`` or ``Enum`` may be."""
    return {a.name: expected(a) for a in record.schema.arguments if a.choices is not None}


def description(record: OpOverload, frameworks: Iterable[Framework]) -> dict[str, Any]:
    """Return what there is to know of an operator, as data."""
    return {
        "operator": record.qualname,
        "schema": str(record.schema),
        "choices": choices(record),
        "flavour": record.flavour,
        "defined": record.source,
        "tags": list(record.tags),
        "differentiable": not record.non_differentiable,
        "kernels": [
            {
                "device": kernel.where,
                "flavour": kernel.flavour,
                "source": kernel.source,
                "enabled": kernel.enabled,
            }
            for kernel in reversed(record.kernels)
        ],
        "rules": [
            {
                "kind": rule.kind,
                "for": "" if rule.slot is None else str(rule.slot),
                "flavour": rule.flavour,
                "source": rule.source,
            }
            for kind in dict.fromkeys(rule.kind for rule in record.rules)
            for rule in record.rules_of(kind)
        ],
        "frameworks": {
            framework.name: {
                "kernels": framework.routes(record),
                **{
                    kind: {
                        "lowered": framework.lowered.get(kind),
                        "unsupported": framework.unsupported.get(kind),
                    }
                    for kind in RULE_KINDS
                },
            }
            for framework in frameworks
        },
    }


def described(entry: dict[str, Any]) -> list[str]:
    """Return a description as lines."""
    lines = [entry["schema"], f"  defined at {entry['defined']} ({entry['flavour']})"]
    lines += [f"  {name}: {text}" for name, text in entry["choices"].items()]
    if entry["tags"]:
        lines.append(f"  tags: {', '.join(entry['tags'])}")
    if not entry["differentiable"]:
        lines.append("  declared non-differentiable")
    rows = [[k["device"], k["flavour"], k["source"], "" if k["enabled"] else "off"] for k in entry["kernels"]]
    lines += ["", "kernels", *(aligned(rows) if rows else ["  none"])]
    rows = [[rule["kind"], rule["for"], rule["flavour"], rule["source"]] for rule in entry["rules"]]
    lines += ["", "rules", *(aligned(rows) if rows else ["  none"])]
    for name, there in entry["frameworks"].items():
        routes = [[f"kernel, {device}", how] for device, how in there["kernels"].items()]
        rows = [[kind, _how(there[kind])] for kind in there if kind != "kernels"]
        lines += ["", f"in {name}", *aligned([*(routes or [["kernel", "none for its arrays"]]), *rows])]
    return lines


def _how(entry: dict[str, Any]) -> str:
    if entry["lowered"]:
        return str(entry["lowered"])
    return f"not supported: {entry['unsupported']}" if entry["unsupported"] else "not described"
