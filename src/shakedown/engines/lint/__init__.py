"""Whether an EAGLE-3 directory serves as it was trained, by engine and version. It opens no file.

profiles = read_surveys(table)
reports = [lint(drafter, target, profile, profiles) for profile in nearest(profiles, None, None)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shakedown.engines.lint.belonging import judge_belonging
from shakedown.engines.lint.facts import (
    DrafterFacts,
    Finding,
    Level,
    RowMatch,
    Serving,
    TargetConfig,
    TensorFact,
)
from shakedown.engines.lint.layers import judge_layers, rule_for, usual_inputs, written
from shakedown.engines.lint.positions import judge_positions
from shakedown.engines.lint.profiles import (
    EngineProfile,
    LayerRule,
    nearest,
    numbers,
    read_live_survey,
    read_surveys,
)
from shakedown.engines.lint.settings import read_settings
from shakedown.engines.lint.switches import judge_support, judge_switches
from shakedown.engines.lint.tensors import judge_tensors
from shakedown.engines.lint.vocabulary import judge_vocabulary

__all__ = [
    "DrafterFacts",
    "EngineProfile",
    "EngineReport",
    "Finding",
    "LayerRule",
    "Level",
    "RowMatch",
    "Serving",
    "TargetConfig",
    "TensorFact",
    "lint",
    "nearest",
    "read_live_survey",
    "read_surveys",
    "usual_inputs",
    "worst",
    "written",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    profile: EngineProfile
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Serving:
        return worst(finding.effect for finding in self.findings)

    @property
    def mends(self) -> tuple[str, ...]:
        """What to do about its errors, each once, the worst first."""
        errors = [f for f in self.findings if f.level is Level.ERROR]
        order = list(Serving)
        errors.sort(key=lambda finding: -order.index(finding.effect))
        return tuple(dict.fromkeys(finding.mend for finding in errors))


def worst(effects: Iterable[Serving]) -> Serving:
    return max(effects, key=list(Serving).index, default=Serving.AS_TRAINED)


def lint(
    drafter: DrafterFacts,
    target: TargetConfig | None,
    profile: EngineProfile,
    known: Sequence[EngineProfile],
) -> EngineReport:
    """What `profile` makes of the drafter; `known` tells how the newest SGLang counts the target's layers."""
    settings = read_settings(drafter.config, profile)
    findings = list(judge_support(drafter, settings, target, profile))
    if not (drafter.is_speculators and not profile.speculators):
        findings += judge_belonging(drafter, settings, target) if target else ()
        findings += judge_layers(drafter, target, profile, sglang_rule(known, target))
        findings += judge_switches(drafter, settings, profile)
        findings += judge_vocabulary(drafter, settings, target, profile)
        findings += judge_positions(drafter, settings, target, profile)
        if drafter.tensors and settings.module:
            findings += judge_tensors(drafter, settings, profile)
    return EngineReport(profile=profile, findings=tuple(findings))


def sglang_rule(known: Sequence[EngineProfile], target: TargetConfig | None) -> LayerRule:
    """How the newest SGLang known counts: trainers write the nested list of layers for it."""
    sglang = [profile for profile in known if profile.is_sglang]
    return rule_for(max(sglang, key=lambda p: numbers(p.version)), target) if sglang else LayerRule.OUTPUT
