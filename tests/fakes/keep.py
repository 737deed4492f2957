"""The keeper of the fake machine: `keep.py ROOT MODEL LOCK`."""

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    from tests.fakes.machine import make_engine  # noqa: PLC0415 - after the path is set

    from pgpu.engine.keeper.calling import TAKE_LOCK, take_lock  # noqa: PLC0415 - likewise
    from pgpu.engine.keeper.life import keep  # noqa: PLC0415 - likewise
    from pgpu.engine.keeper.zygote import fork_zygote  # noqa: PLC0415 - likewise
    from pgpu.engine.settings import EngineSettings  # noqa: PLC0415 - likewise

    root, model = Path(sys.argv[1]), sys.argv[2]
    again = (sys.executable, __file__, str(root), model)
    lock = take_lock(EngineSettings(root / "state", root / "run"), model, int(sys.argv[3]))
    if lock is None:
        return
    zygote = fork_zygote(_load, partial(_become, root), (*again, str(TAKE_LOCK)), [lock])
    keep(partial(make_engine, root), zygote, lock, again)


def _load() -> None:
    import pgpu.engine.supervisor  # noqa: F401, PLC0415 - before the first fork


def _become(root: Path, job_id: str) -> None:
    from tests.fakes.machine import make_engine  # noqa: PLC0415 - likewise

    from pgpu.engine.settings import redirect_stderr  # noqa: PLC0415 - likewise
    from pgpu.engine.supervisor import supervise  # noqa: PLC0415 - likewise

    engine = make_engine(root)
    redirect_stderr(engine.places(job_id))
    environment = engine.ledger.environment(job_id)
    os.environ.clear()
    os.environ.update(environment)
    supervise(engine, job_id)


if __name__ == "__main__":
    main()
