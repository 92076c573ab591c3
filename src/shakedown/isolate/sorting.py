"""How the settings of a command are sorted into factors, each setting into exactly one.

It names no engine: patterns, groups and safe values come from the engine's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from shakedown.core import Command, Factor, FactorKind, Fit, FlagTable, Mark, Switch
from shakedown.isolate.settings import Setting, device_of, is_harmless, settings_of

# How much a user hates to lose it: remedies are tried from the cheapest on.
_DEAR_SWITCH, _DEAR_VALUE, _DEAR_FEATURE, _DEAR_GROUP, _DEAR_SIZE = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A factor, with what others may hang on it by."""

    factor: Factor
    labels: frozenset[str] = field(default_factory=frozenset)  # its group or feature, and its settings


class Sorting:
    """Sorts each setting into exactly one place: essential, group, fit, switch, or a factor of its own."""

    def __init__(
        self, command: Command, table: FlagTable | None, marks: frozenset[Mark] = frozenset()
    ) -> None:
        self.command, self.engine, self.table = command, command.engine, table
        self.measured = tuple(
            pattern for mark, patterns in self.engine.measured_by if mark in marks for pattern in patterns
        )
        self.device = device_of(command, table)
        self.names = {name: flag.names for flag in (table.flags if table else ()) for name in flag.names}
        self.defaults = {flag.names[0]: flag.default for flag in (table.flags if table else ())}
        self.given = settings_of(command, table)
        self.open = {
            name: setting for name, setting in self.given.items() if not self._is_untouchable(setting)
        }
        self.drafts: list[_Draft] = []

    def factors(self) -> tuple[Factor, ...]:
        self._take_layout()
        for group, patterns in self.engine.groups:
            self._take_group(group, patterns)
        self._drop_stated_defaults()
        self._take_fits()
        for switch in self.engine.switches:
            self._take_switch(switch)
        for setting in tuple(self.open.values()):
            bare = setting.is_flag and not setting.value
            dear = _DEAR_SWITCH if not setting.is_flag else _DEAR_FEATURE if bare else _DEAR_VALUE
            self._add(
                FactorKind.FLAG if setting.is_flag else FactorKind.ENV, [setting], setting.text, dear=dear
            )
        return self._hung()

    # --- settings

    def _is_untouchable(self, setting: Setting) -> bool:
        """Essential, or a number that fits anywhere."""
        fit = self._fit(setting.name)
        if fit is not None:
            return is_harmless(fit, setting.value)
        essential = self.engine.essential_flags | self.engine.essential_env | set(self.measured)
        return any(self._matches(setting.name, pattern) for pattern in essential)

    def _states_default(self, setting: Setting) -> bool:
        return bool(setting.value) and setting.value == self.defaults.get(setting.name)

    def _drop_stated_defaults(self) -> None:
        self.open = {name: given for name, given in self.open.items() if not self._states_default(given)}

    def _matches(self, name: str, pattern: str) -> bool:
        return any(fnmatchcase(alias, pattern) for alias in self.names.get(name, (name,)))

    def _canonical(self, name: str) -> str:
        return self.names.get(name, (name,))[0]

    def _fit(self, name: str) -> Fit | None:
        for fit in self.engine.fits:
            if self.device in fit.devices and self._canonical(fit.name) == name:
                return fit
        return None

    # --- factors

    def _add(
        self,
        kind: FactorKind,
        settings: Iterable[Setting],
        name: str,
        *,
        dear: int,
        label: str = "",
        now: str = "removed",
        add_argv: tuple[str, ...] = (),
        add_env: tuple[tuple[str, str], ...] = (),
        needs: frozenset[str] = frozenset(),
        was: str = "",
        safe: bool = False,
    ) -> None:
        settings = tuple(settings)
        unset = {name: positions for name, positions in self.command.unset}
        positions = [at for setting in settings for at in setting.positions]
        positions += [at for variable, _ in add_env for at in unset.get(variable, ())]
        for setting in settings:
            self.open.pop(setting.name, None)
        factor = Factor(
            name=self._unique(_shortened(name)),
            kind=kind,
            was=was or " ".join(setting.text for setting in settings),
            now=now,
            drop_argv=tuple(sorted(set(positions))),
            drop_env=tuple(variable for setting in settings for variable in setting.variables),
            add_argv=add_argv,
            add_env=add_env,
            needs=needs,
            dear=dear,
            safe=safe,
        )
        labels = frozenset({label, *(setting.name for setting in settings)} - {""})
        self.drafts.append(_Draft(factor=factor, labels=labels))

    def _unique(self, name: str) -> str:
        taken = {draft.factor.name for draft in self.drafts}
        candidates = (name, *(f"{name} #{number}" for number in range(2, len(taken) + 3)))
        return next(candidate for candidate in candidates if candidate not in taken)

    def _members(self, patterns: Iterable[str]) -> list[Setting]:
        return [
            setting
            for name, setting in self.open.items()
            if any(self._matches(name, pattern) for pattern in patterns)
        ]

    def _take_layout(self) -> None:
        layout = self.engine.layout
        nodes = self._size(layout.nodes) if layout else 1
        if layout is None or nodes < 2:
            return
        members = self._members(dict(self.engine.groups)[layout.group])
        now, needs = "removed", frozenset[str]()
        add_argv: tuple[str, ...] = ()
        if self._size(layout.replicas) % nodes == 0:
            needs = frozenset({layout.replicas})  # the engine refuses the nodes with nothing to spread
        elif split := next((name for name in layout.splits if self._size(name) % nodes == 0), None):
            setting = self.given[self._canonical(split)]
            members.append(setting)
            if (left := self._size(split) // nodes) > 1:
                add_argv = (setting.spelled, str(left))
                now = f"on one node, {' '.join(add_argv)}"
        self._add(
            FactorKind.GROUP,
            members,
            f"{layout.group} ({self.given[self._canonical(layout.nodes)].text})",
            dear=_DEAR_SIZE,
            label=layout.group,
            now=now,
            add_argv=add_argv,
            needs=needs,
        )

    def _size(self, name: str) -> int:
        setting = self.given.get(self._canonical(name))
        return int(setting.value) if setting and setting.value.isdecimal() else 1

    def _take_group(self, group: str, patterns: tuple[str, ...]) -> None:
        members = self._members(patterns)
        if not all(self._states_default(setting) for setting in members):
            self._add(
                FactorKind.GROUP, members, f"{group} ({members[0].text})", dear=_DEAR_GROUP, label=group
            )

    def _take_fits(self) -> None:
        fitting = {fit.name for fit in self.engine.fits if self.device in fit.devices}
        for setting in self._members(self.engine.fit_flags | fitting):
            fit = self._fit(setting.name)
            if fit is None or fit.safe is None:
                self._add(FactorKind.FIT, [setting], setting.text, dear=_DEAR_SIZE)
            elif setting.is_flag:
                add = (setting.spelled, fit.safe)
                now = f"replaced by {' '.join(add)}"
                self._add(FactorKind.FIT, [setting], setting.text, dear=_DEAR_VALUE, now=now, add_argv=add)
            else:
                now = f"replaced by {fit.name}={fit.safe}"
                self._add(
                    FactorKind.FIT,
                    [setting],
                    setting.text,
                    dear=_DEAR_VALUE,
                    now=now,
                    add_env=((fit.name, fit.safe),),
                )

    def _take_switch(self, switch: Switch) -> None:
        if self.device not in switch.devices or not self._exists(switch):
            return
        used = [name for name in switch.only_with if self._is_used(name)]
        if switch.only_with and not used:
            return
        needs = self._needs_of(switch, used)
        own = {self._canonical(token) for token in switch.argv if token.startswith("-")}
        own |= {name for name, _ in switch.env}
        settled = own | {self._canonical(name) for name in switch.settled_by}
        if any(name in self.given and name not in self.open for name in own):
            return  # a fit or essential setting decides it
        owners = [setting for name, setting in self.open.items() if name in settled]
        if owners and all(self._is_safe(setting, switch) for setting in owners):
            kind = FactorKind.FLAG if owners[0].is_flag else FactorKind.ENV
            text = " ".join(owner.text for owner in owners)
            # An off-switch can fail, too.
            self._add(kind, owners, text, dear=_DEAR_SWITCH, needs=needs, safe=True)
            return
        change = " ".join((*switch.argv, *(f"{name}={value}" for name, value in switch.env)))
        if owners:
            kind = FactorKind.FLAG if owners[0].is_flag else FactorKind.ENV
            name, was, now = " ".join(owner.text for owner in owners), "", f"replaced by {change}"
        else:
            kind = FactorKind.BACKEND if switch.backend else FactorKind.DEFAULT
            name, was = switch.feature, "as the engine picks it" if switch.backend else "on by default"
            now = f"{'set' if switch.backend else 'switched off'} by {change}"
        self._add(
            kind,
            owners,
            name,
            dear=_DEAR_VALUE if owners else _DEAR_SWITCH,
            label=switch.feature,
            was=was,
            now=now,
            add_argv=switch.argv,
            add_env=switch.env,
            needs=needs,
        )

    def _needs_of(self, switch: Switch, used: Sequence[str]) -> frozenset[str]:
        """The one flag without which a feature means nothing: how ranks reduce, on a single rank. Blamed
        with it, the flag would be named too; not where the flag itself hangs on the feature."""
        hangs = [pattern for pattern, target in self.engine.hangs_on if target == switch.feature]
        if len(used) != 1 or any(self._matches(self._canonical(used[0]), pattern) for pattern in hangs):
            return frozenset()
        return frozenset(used)

    def _exists(self, switch: Switch) -> bool:
        return all(token in self.names for token in switch.argv if token.startswith("-"))

    def _is_used(self, name: str) -> bool:
        setting = self.given.get(self._canonical(name))
        return setting is not None and setting.value != "1"

    def _is_safe(self, setting: Setting, switch: Switch) -> bool:
        if not setting.is_flag:
            return (setting.name, setting.value) in switch.env
        if not switch.argv or self._canonical(switch.argv[0]) != setting.name:
            return False
        # Long options may be shortened; a negation may not.
        same_side = setting.spelled.startswith("--no-") == switch.argv[0].startswith("--no-")
        return same_side and setting.value == " ".join(switch.argv[1:])

    def _hung(self) -> tuple[Factor, ...]:
        """The factors, each with the names of those it means nothing without."""
        by_label: Mapping[str, str] = {
            label: draft.factor.name for draft in self.drafts for label in draft.labels
        }
        finished = []
        for draft in self.drafts:
            needs = set(draft.factor.needs)
            for pattern, target in self.engine.hangs_on:
                if any(self._matches(label, pattern) for label in draft.labels):
                    needs.add(target)
            names = {by_label[self._canonical(n)] for n in needs if self._canonical(n) in by_label}
            finished.append(replace(draft.factor, needs=frozenset(names - {draft.factor.name})))
        return tuple(finished)


def _shortened(name: str) -> str:
    return name if len(name) <= 72 else f"{name[:71]}…"
