"""The secret of a private run: what its noise and its samples of clients are drawn from.

In a simulation both follow from run.seed. Every client of a real federation knows the seed: it could work the noise
out and take it off. So a real run has 32 bytes of the operating system's entropy in `privacy.key` of the server's run
folder. With them, a resumed run draws the same again. Whoever can read the file can undo the privacy of the run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from secrets import token_bytes

from torso.errors import RequestError
from torso.federation.folder import write_private
from torso.results.files import writing
from torso.runs.job import Job

KEY = "privacy.key"
_BYTES = 32


def with_secret(job: Job, folder: Path, resume: bool) -> Job:
    """The job as it is, or with the secret of its run folder where it is private; a new run makes one."""
    if job.privacy is None:
        return job
    private = replace(job.privacy, secret=_read(folder / KEY) if resume else _made(folder / KEY))
    plan = tuple(replace(stage, privacy=private) if stage.privacy else stage for stage in job.plan)
    return replace(job, plan=plan)


def _made(path: Path) -> bytes:
    secret = token_bytes(_BYTES)
    with writing(path):
        write_private(path, secret)
    return secret


def _read(path: Path) -> bytes:
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"{str(path)!r} cannot be read ({error.strerror}), and a private run cannot go on without the secret that "
            "it began with. Start again in another folder."
        ) from None
    if len(secret) != _BYTES:
        raise RequestError(f"{str(path)!r} has {len(secret)} bytes. Expected: {_BYTES}, as the run wrote them")
    return secret
