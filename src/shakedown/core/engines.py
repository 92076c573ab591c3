"""The shape of everything Shakedown knows about an engine.

It names no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shakedown.core.marks import Mark
from shakedown.core.verdicts import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A log line that says a phase has begun. `pattern` is a linear-time regular expression."""

    phase: Phase
    pattern: str


class Values(StrEnum):
    """How many values a flag takes."""

    NONE = "none"
    ONE = "one"
    OPTIONAL = "optional"
    MANY = "many"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of an engine's own parser; `names[0]` is the canonical long form."""

    names: tuple[str, ...]
    values: Values
    choices: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTable:
    """All flags of one engine version, and where the table came from ("live" or "shipped")."""

    engine: str
    version: str
    source: str
    flags: tuple[Flag, ...]
    env: frozenset[str] = frozenset()  # variables the engine itself names
    device: str = ""  # what the engine would run on there ("cuda", "cpu" …); "" where not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A default-on feature (or an engine-picked backend) and what turns it off (or conservative).

    It is a factor only where each flag of `argv` exists in the flag table and none of `settled_by`
    is set to the safe side by the user already.
    """

    feature: str
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    settled_by: tuple[str, ...] = ()  # flags or variables by which a user decides this feature
    milder: tuple[tuple[str, ...], ...] = ()  # costs less than switching it off, and may do; mildest first
    backend: bool = False
    devices: frozenset[str] = frozenset({"cuda", "cpu"})
    only_with: tuple[str, ...] = ()  # means something only where one of these flags is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a setting that makes the model fit is tested: never stripped, replaced by a `safe` value.

    Numbers within `harmless` are left alone. `safe` None: left to the engine.
    """

    name: str  # a canonical flag or a variable
    safe: str | None
    harmless: tuple[float, float] | None = None
    devices: frozenset[str] = frozenset({"cuda", "cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one launch is spread over several nodes; `splits` are the sizes it may divide, first one first."""

    group: str  # its name among `Engine.groups`
    nodes: str
    splits: tuple[str, ...]
    replicas: str = ""  # data parallelism that may spread instead: valid alone, so a factor of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Values of a flag worth trying in place of one that fails, the commonest first."""

    flag: str
    values: tuple[str, ...]
    devices: frozenset[str] = frozenset({"cuda", "cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A folder of things compiled earlier, and the variable that puts another in its place.

    `default` may begin with ~ and hold {user}; `holds` is the part of it that is filled by what is
    compiled. `of`: the feature that fills it, whose absence makes it meaningless.
    """

    variable: str
    default: str
    holds: str = ""
    of: str = ""
    devices: frozenset[str] = frozenset({"cuda", "cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A key of a model's config.json that is suspicious with some values, and a plain value (JSON).

    `key` may lead into an object ("a.b"). Null, the plain value, a number within `usual` and a word of
    `usual_words` are no suspects. `unless_off`: a key that makes this one meaningless where it is false.
    """

    key: str
    plain: str
    usual: tuple[float, float] | None = None
    usual_words: tuple[str, ...] = ()
    unless_off: str = ""


class LogprobStyle(StrEnum):
    """How a server is asked for the log-probabilities of given text."""

    PROMPT_LOGPROBS = "prompt_logprobs"  # vLLM
    ECHO = "echo"  # completions with echo and max_tokens >= 1
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything Shakedown knows of one engine, as data. Patterns are matched line by line."""

    name: str
    entries: tuple[str, ...]  # modules, scripts or programs that start it
    markers: tuple[Marker, ...]
    frame_phases: tuple[tuple[str, Phase], ...]  # "function (file" fragments that place a silent process
    waits_for_child: tuple[str, ...]  # frames in which a process waits for another of the same launch
    waiting_phrases: tuple[str, ...]  # never count as progress
    noise: tuple[str, ...]  # folded in the live view
    fatal: tuple[str, ...]  # a required process has died of an exception
    not_a_cause: tuple[str, ...]  # error lines that only repeat an earlier cause
    rank_pattern: str  # named groups `rank` and maybe `pid` of a line's prefix
    groups: tuple[tuple[str, tuple[str, ...]], ...]  # (name, flag names or prefixes ending in *)
    switches: tuple[Switch, ...]
    essential_flags: frozenset[str]
    essential_env: frozenset[str]
    fit_flags: frozenset[str]
    default_port: int | None
    port_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    model_flags: tuple[str, ...]
    served_name_flags: tuple[str, ...]
    api_key_flags: tuple[str, ...]
    random_weight_settings: tuple[tuple[str, str], ...]  # (flag, value): meant to have random weights
    health_path: str | None
    logprobs: LogprobStyle
    flags_script: str  # Python source, run in the launch's interpreter: prints the flag table as JSON
    fits: tuple[Fit, ...] = ()
    hangs_on: tuple[
        tuple[str, str], ...
    ] = ()  # (flag or variable, group or feature it means nothing without)
    layout: Layout | None = None
    own_limits: tuple[
        tuple[str, Phase], ...
    ] = ()  # (flag or variable, phase): after so many seconds of waiting the engine gives up by itself
    siblings: tuple[Siblings, ...] = ()
    measured_by: tuple[
        tuple[Mark, tuple[str, ...]], ...
    ] = ()  # (mark, flags): without these there is nothing to measure
    blinded_by: tuple[tuple[Mark, tuple[str, ...]], ...] = ()  # (mark, flags): with one it cannot be measured
    caches: tuple[Cache, ...] = ()
    config_file_flag: str = ""  # names a YAML file that holds flags
    config_values: tuple[ConfigValue, ...] = ()
    alarms: tuple[str, ...] = ()  # the engine's own word that it stands still: no progress, yet worth showing
    override_flag: str = ""  # takes a JSON object that overrides the model's config.json
    event_loops: tuple[str, ...] = ()  # frames of a loop that polls for requests, whatever it does …
    loop_work: tuple[str, ...] = ()  # … and frames under it that are work
    debug_argv: tuple[str, ...] = ()  # for the one evidence run
    debug_env: tuple[tuple[str, str], ...] = ()
