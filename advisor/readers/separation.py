"""Which traces belong to one run, and how to name a run among several.

A rank is trained by one process. Two processes of one rank are two runs, or a run and its restart; several files of one
process are windows of one recording, as torch.profiler writes them when its schedule repeats.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import chain

from advisor.readers.display import list_names
from advisor.readers.ranks import find_process, find_time_ns, strip_numbers
from advisor.readers.sources import Source

Key = Callable[[Source], Hashable]
MOST_RUNS_SHOWN = 6


def separate_runs(sources: Sequence[Source], manifest_folders: Collection[str] = ()) -> list[list[Source]]:
    """Tells runs apart: by their manifests, else by whatever explains why a rank has several processes.

    The explanations are tried in this order: the number of ranks, the folders from the outermost, the file names
    without their numbers, the times. The first that leaves fewer ranks with several processes is taken.

    Example: `a/rank0.json, a/rank1.json, b/rank0.json, b/rank1.json` of four processes are the runs `a` and `b`;
    `step5/rank0.json, step9/rank0.json` of one process are one run.
    """
    by_manifest = _partition(sources, lambda source: find_innermost(source.folder, manifest_folders))
    return [run for group in by_manifest for run in _separate(group)]


def order_windows(sources: Sequence[Source]) -> list[Source]:
    """The files of one rank in the order in which they were recorded."""
    return sorted(sources, key=lambda source: (_find_start_ns(source), source.name))


def name_run(run: Sequence[Source], all_sources: Sequence[Source]) -> str | None:
    """What to give `analyze` for this run alone: a folder or a pattern; None where neither fits."""
    chosen = {source.name for source in run}
    others = [source.name for source in all_sources if source.name not in chosen]
    folder = _find_common_start([f"{source.folder}/" for source in run]).rpartition("/")[0]
    if folder and not any(other.startswith(f"{folder}/") for other in others):
        return folder
    prefix = _find_common_start(chosen)
    is_pattern = all("/" not in name.removeprefix(prefix) for name in chosen)
    clashes = any(other.startswith(prefix) for other in others)
    return f"{prefix}*" if is_pattern and not clashes else None


def describe_runs(runs: Sequence[Sequence[Source]]) -> str:
    """The runs in a few words each, and what to do about there being several."""
    everything = list(chain.from_iterable(runs))
    names = [name_run(run, everything) for run in runs]
    listed = list_names(
        [f"{name or run[0].name} with {_count_ranks(run)}" for name, run in zip(names, runs, strict=True)],
        MOST_RUNS_SHOWN,
    )
    choice = next((name for name in names if name), None)
    if choice is None:
        return f"{listed}; move the files of each into a folder of its own and analyze one"
    return f"{listed}; analyze one of them, such as `ddp-advisor analyze {shlex.quote(choice)}`"


def find_innermost(folder: str, folders: Collection[str]) -> str | None:
    """The innermost of `folders` that holds `folder`."""
    above = [candidate for candidate in folders if not candidate or f"{folder}/".startswith(f"{candidate}/")]
    return max(above, key=len, default=None)


def _separate(sources: list[Source]) -> list[list[Source]]:
    rivals = _count_rivals(sources)
    if rivals == 0:
        return [sources]
    depth = max(source.name.count("/") for source in sources)
    keys: list[Key] = [lambda source: source.head.world_size, *(_key_folder(level) for level in range(depth))]
    for key in keys:
        groups = _partition(sources, key)
        if sum(map(_count_rivals, groups)) < rivals:
            return [run for group in groups for run in _separate(group)]
    groups = _partition(sources, lambda source: strip_numbers(source.name.rpartition("/")[2]))
    if 1 < len(groups) <= rivals + 1 and not any(map(_count_rivals, groups)):
        return groups
    return _separate_by_time(sources)


def _separate_by_time(sources: list[Source]) -> list[list[Source]]:
    """Runs that came one after the other: a new one begins where a rank gets another process."""
    processes = _partition(sources, lambda source: (source.rank, _name_process(source)))
    runs: list[dict[int | None, list[Source]]] = [{}]
    for files in sorted(processes, key=lambda files: min(map(_find_start_ns, files))):
        rank = files[0].rank
        if rank in runs[-1]:
            runs.append({})
        runs[-1][rank] = files
    return [list(chain.from_iterable(run.values())) for run in runs]


def _count_rivals(sources: Sequence[Source]) -> int:
    """Processes too many for one run, and world sizes too many."""
    processes = defaultdict(set)
    for source in sources:
        processes[source.rank].add(_name_process(source))
    worlds = {source.head.world_size for source in sources} - {None}
    return sum(len(of_rank) - 1 for of_rank in processes.values()) + max(0, len(worlds) - 1)


def _partition(sources: Sequence[Source], key: Key) -> list[list[Source]]:
    groups: dict[Hashable, list[Source]] = defaultdict(list)
    for source in sources:
        groups[key(source)].append(source)
    return list(groups.values())


def _key_folder(level: int) -> Key:
    def name_folder(source: Source) -> str | None:
        folders = source.folder.split("/")
        return folders[level] if level < len(folders) else None

    return name_folder


def _name_process(source: Source) -> str | None:
    return source.head.process or find_process(source.name)


def _find_start_ns(source: Source) -> int:
    return find_time_ns(source.name) or source.head.first_ns or 0


def _count_ranks(run: Sequence[Source]) -> str:
    num_ranks = len({source.rank for source in run})
    return f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"


def _find_common_start(names: Collection[str]) -> str:
    first, last = min(names), max(names)
    length = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]
