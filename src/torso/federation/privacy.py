"""The random secret of a private run, from which its noise and its samples of clients are drawn.

In a simulation both are drawn from run.seed. In a real federation every client knows the seed and could compute the
noise and subtract it. So a real run uses 32 random bytes of the operating system. They are in `privacy.key` of the
server's run folder, so that a resumed run draws the same noise. Whoever can read this file can undo the privacy of the
run.
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
    """The job with the secret of its run folder, if it is private; a new run makes the secret."""
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
