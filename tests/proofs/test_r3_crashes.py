"""R3: whatever a crash leaves of a save's writes, the old or the new checkpoint loads.

One save is recorded call by call. Every state is made that the disk may be in when the power fails during it: any of
the changes that were not synced may be missing, whichever came first. Control: the same record without a sync.
"""

import collections
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from foretune.training.checkpoints import CheckpointStore, NoGoodCheckpoint
from tests.conftest import ProofSize, lacking
from tests.proofs.crash_states import Crashes, Tree, read_tree, without_sync, write_tree
from tests.proofs.fork_server import ForkServer
from tests.proofs.recorded_writes import Change
from tests.proofs.saving import COMPONENTS, facts_of, is_made_checkpoint, made_checkpoint
from tests.proofs.syscalls import PTRACE

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.takes_turns]

_LIMIT_S = 1200.0
_NUM_VALUES = 600
"""Files of three blocks: a crash may keep any of them."""
_NUM_DRAWN = 60
"""States for each sync that is left out. About a third of them lose, so that none is seen by chance not to."""
_ENOUGH = 5
"""States that are wrong: more of them show nothing new."""


@dataclass(frozen=True)
class Situation:
    """What is in the directory before the save."""

    name: str
    keep: int
    steps: tuple[int, ...]
    is_refused_in_way: bool = False
    """A damaged checkpoint of the same step, and what a killed save left of it."""

    @property
    def old(self) -> int:
        return self.steps[-1]

    @property
    def new(self) -> int:
        return self.old + 1

    def make(self, directory: Path) -> None:
        directory.mkdir()
        for step in self.steps:
            CheckpointStore(directory, self.keep).write(made_checkpoint(step, _NUM_VALUES))
        if self.is_refused_in_way:
            for name in (f"step-{self.new:09d}", f".writing-step-{self.new:09d}"):
                (directory / name).mkdir()
                (directory / name / "manifest.json").write_text("half of")


SITUATIONS = (
    Situation("the only one is replaced", keep=1, steps=(1,)),
    Situation("the older of two is removed", keep=2, steps=(1, 2)),
    Situation("a refused one is in the way", keep=1, steps=(1,), is_refused_in_way=True),
)


@dataclass(frozen=True)
class Save:
    """A save as it was recorded, and what was there before it."""

    situation: Situation
    before: Tree
    changes: list[Change]


@pytest.fixture(scope="module", params=SITUATIONS, ids=lambda situation: situation.name)
def save(request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Save:
    situation: Situation = request.param
    folder = tmp_path_factory.mktemp("r3")
    directory, result = folder / "checkpoints", folder / "changes.json"
    situation.make(directory)
    before = read_tree(directory)
    child = fork_server.start(
        "tests.proofs.saving:record_save",
        directory=str(directory),
        keep=situation.keep,
        step=situation.new,
        num_values=_NUM_VALUES,
        result=str(result),
    )
    assert child.wait(_LIMIT_S) == 0, f"see {fork_server.log}"
    changes = [Change(**change) for change in facts_of(result)]
    if not changes:
        lacking(PTRACE)
    assert Crashes(before, changes).after == read_tree(directory), "the record is not all that was done"
    return Save(situation, before, changes)


def test_r3_every_state_that_a_crash_may_leave_loads(
    save: Save, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    situation, every, outcomes, wrong = save.situation, proof_size(1, 3), collections.Counter[str](), []
    for number, (tree, is_over) in enumerate(Crashes(save.before, save.changes).states()):
        # When the save is over, the new one must be there; these states are few, and all are tried.
        if not is_over and number % every:
            continue
        outcome = _loaded(situation, tree, tmp_path, goes_on=number % (10 * every) == 0)
        outcomes[outcome] += 1
        if outcome != "new" and (is_over or outcome != "old"):
            wrong.append(f"state {number}: {outcome}, with {sorted(tree)}")
        if len(wrong) == _ENOUGH:
            break
    num_syncs = sum(change.kind == "sync" for change in save.changes)
    report_figure(
        f"{situation.name}: {len(save.changes)} changes, {num_syncs} of them syncs; {outcomes.total()} states"
        f"{'' if every == 1 else f', one in {every}'}: {outcomes['old']} load the old, {outcomes['new']} the new "
        f"checkpoint, {len(wrong)} what they should not"
    )
    assert wrong == []
    assert outcomes["old"] > 0
    assert outcomes["new"] > 0
    assert outcomes.total() >= 1000 / len(SITUATIONS) / every, "too few states to show anything"


def test_r3_control_every_sync_is_needed(save: Save, tmp_path: Path, report_figure: Callable[[str], None]) -> None:
    """With any one sync left out, or all, states lose both checkpoints or do not keep what was said to be saved."""
    rng = random.Random(f"r3 {save.situation.name}")
    num_syncs = sum(change.kind == "sync" for change in save.changes)
    num_lost: dict[str, int] = {}
    for number in (None, *range(num_syncs)):
        changes = without_sync(save.changes, number)
        outcomes = [
            _loaded(save.situation, tree, tmp_path) for tree in Crashes(save.before, changes).drawn(rng, _NUM_DRAWN)
        ]
        name = "all" if number is None else f"sync {number}"
        num_lost[name] = sum(outcome != "new" for outcome in outcomes)
    report_figure(
        f"{save.situation.name}, control: without any sync {num_lost['all']} of {_NUM_DRAWN} states lose the new "
        f"checkpoint; with one of {num_syncs} left out, at least {min(num_lost.values())}"
    )
    assert num_syncs > 0
    assert [name for name, lost in num_lost.items() if not lost] == []


def _loaded(situation: Situation, tree: Tree, folder: Path, *, goes_on: bool = False) -> str:
    """Which checkpoint a reader takes; with `goes_on`, the next save is made too."""
    directory = folder / "state"
    write_tree(directory, tree)
    store = CheckpointStore(directory, situation.keep)
    try:
        found = store.read_newest(COMPONENTS)
    except NoGoodCheckpoint as error:
        return f"lost: {error}"
    else:
        if found is None or not is_made_checkpoint(found[0], _NUM_VALUES):
            return "lost: not what was saved"
        if goes_on:
            store.write(made_checkpoint(situation.new + 1, _NUM_VALUES))
            if hidden := [path.name for path in directory.iterdir() if path.name.startswith(".")]:
                return f"lost: the next save leaves {hidden}"
        return {situation.old: "old", situation.new: "new"}.get(found[0].step, f"lost: step {found[0].step}")
    finally:
        shutil.rmtree(directory)
