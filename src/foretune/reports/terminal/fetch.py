"""A download in a few lines: what it is, how large, under which licence, and whether there is room."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretune import catalog
from foretune.core.units import counted_text, disk_text
from foretune.hub.download_plan import DownloadPlan, PipelinePart, Room
from foretune.hub.surroundings import TOKEN_VARIABLES


def download_lines(plan: DownloadPlan, *, with_disk: bool = True) -> Iterator[str]:
    """What will be downloaded, or would be; without the disk where several downloads share it."""
    revision = plan.revision or "the newest commit of main (a download pins it)"
    yield f"{'Model' if plan.kind == 'model' else 'Data set':<12}{plan.model}"
    yield f"Repository  {plan.repo} at {revision}"
    yield f"Licence     {plan.licence or f'not in the catalogue: see https://huggingface.co/{plan.repo}'}"
    yield f"Access      {_access(plan)}"
    yield f"Token       {_token(plan)}"
    yield f"Size        {_size(plan)}"
    for part in plan.parts:
        yield f"  {part.name:<18}{_part(part)}"
    if with_disk:
        yield f"Goes to     {plan.cache}"
        yield f"Disk        {_disk(Room((plan,)))}"
    if not plan.is_trainable:
        yield "Note        it can be planned, but not trained yet, so `foretune fetch` does not download it"


def _access(plan: DownloadPlan) -> str:
    if plan.is_gated:
        return f"gated: accept the licence on {plan.page} and set HF_TOKEN"
    return "not in the catalogue; the Hub tells" if plan.is_gated is None else "open"


def _token(plan: DownloadPlan) -> str:
    if plan.token_variable is not None:
        return f"{plan.token_variable} is set"
    stored = "; one is stored by `hf auth login`" if plan.has_stored_token else ""
    return f"none in the environment ({' or '.join(TOKEN_VARIABLES)}){stored}"


def _size(plan: DownloadPlan) -> str:
    here = "" if not plan.here_bytes else f", of which {disk_text(plan.here_bytes)} are in the cache"
    if not plan.is_estimate:
        num_files = sum(part.num_files or 0 for part in plan.parts)
        return f"{disk_text(plan.low_bytes)} in {counted_text(num_files, 'files')}{here}"
    if not plan.high_bytes:
        return f"not in the catalogue{here}"
    more = "" if all(part.low_bytes is not None for part in plan.parts) else " and what is not known"
    return f"{_bytes(plan.low_bytes, plan.high_bytes)}{more}, an estimate: parameters x 2 bytes to x 4 bytes{here}"


def _part(part: PipelinePart) -> str:
    if part.low_bytes is None or part.high_bytes is None:
        return f"? ({part.note})"
    what = part.note if part.num_files is None else counted_text(part.num_files, "files")
    return f"{_bytes(part.low_bytes, part.high_bytes)} ({what})"


def _bytes(low: int, high: int) -> str:
    return disk_text(low) if low == high else f"{disk_text(low)} to {disk_text(high)}"


def _disk(room: Room) -> str:
    free = f"{disk_text(room.free_bytes)} free"
    if room.fits == "no":
        return f"{free}: not enough for the {disk_text(room.missing_bytes)} that are missing"
    if room.fits == "yes":
        return f"{free}: enough"
    is_known = all(part.low_bytes is not None for plan in room.plans for part in plan.parts)
    return f"{free}: enough for {'16-bit weights' if is_known else 'the parts of known size in 16 bits'}"


def total_lines(plans: Sequence[DownloadPlan]) -> Iterator[str]:
    """Several downloads together: their size, what of it is in the cache, and whether the disk has room."""
    room = Room(tuple(plans))
    unknown = [plan.model for plan in plans if any(part.low_bytes is None for part in plan.parts)]
    more = f" and what is not known of {', '.join(unknown)}" if unknown else ""
    size = _bytes(sum(plan.low_bytes for plan in plans), sum(plan.high_bytes for plan in plans))
    yield f"Total       {counted_text(len(plans), 'repositories')}: {size}{more}"
    yield f"In cache    {disk_text(room.here_bytes) if room.here_bytes else 'nothing'}"
    yield f"Goes to     {plans[0].cache}"
    yield f"Disk        {_disk(room)}"


def fetched_lines(
    plan: DownloadPlan | None, folder: Path | None, num_verified: int, num_files: int, *, with_disk: bool = True
) -> Iterator[str]:
    """How a download ended; of a dry run, what would be downloaded."""
    if plan is None:
        yield f"{folder} is a local folder: there is nothing to download."
        return
    if folder is None:
        yield from download_lines(plan, with_disk=with_disk)
        return
    unverified = "" if num_verified == num_files else f" ({num_files - num_verified} without a known hash)"
    yield f"Verified {num_verified} of {counted_text(num_files, 'files')} by hash{unverified}: {folder}"
    if plan.kind == "model":
        yield f"`model: {plan.model}` is found there, also without a network (HF_HUB_OFFLINE=1)."
        return
    # Files in huggingface_hub's cache are links to its blobs, which are beside the snapshot.
    settings = {**catalog.datasets()[plan.model].data, "path": str(folder), "follow_links": True}
    yield f"In an experiment file: data: {json.dumps(settings)}"
