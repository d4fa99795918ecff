"""What the Hub refused, in a sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from foretune.core.errors import UserError
from foretune.hub.surroundings import token_variable

_REFUSALS = (401, 403)
_NO_CONNECTION = {"ConnectionError", "ConnectError", "ConnectTimeout"}


class HubRefused(UserError):
    """The Hub did not give or take what was asked of it."""


@contextmanager
def explain_failures(
    repo: str, failed: str, otherwise: str, refused: str | None = None, unreachable: str | None = None
) -> Iterator[None]:
    """Turns every failure of the Hub within the block into one sentence.

    `failed` says what did not happen ("could not be downloaded from the Hub"), `refused` what to do where the Hub
    refused access (if left out, how to be let in to a gated model), `unreachable` what to do without a network, and
    `otherwise` what to do in all other cases.
    """
    try:
        yield
    except (UserError, AssertionError, AttributeError, ImportError, NameError, TypeError):
        raise  # not the Hub's
    except Exception as error:  # all failures of the Hub get the same advice and include its message
        reason = f"{type(error).__name__}: {_first_line(error).rstrip('.')}"
        advice = (refused or _how_to_get_access(repo)) if is_refusal(error) else otherwise
        no_network = _no_network(error)
        if no_network is not None:
            reason, advice = no_network, unreachable or otherwise
        raise HubRefused(f"{repo} {failed}: {reason}. {advice}") from error


def page_of(repo: str) -> str:
    """The page of a model, on which its licence can be accepted."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}"


def is_refusal(error: BaseException) -> bool:
    """Whether the Hub answered that this user may not: a gated or private repository, or a wrong token."""
    response = getattr(error, "response", None)
    if response is not None:
        return getattr(response, "status_code", None) in _REFUSALS
    # huggingface_hub looks into its cache then, and says that nothing is there because of the refusal.
    return error.__cause__ is not None and is_refusal(error.__cause__)


def _no_network(error: BaseException) -> str | None:
    """Why the Hub was not asked; None if it was, and answered."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    # huggingface_hub looks into its cache then, and raises that nothing is there because of the first error.
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in causes):
        return "it is not in the cache on this machine, and HF_HUB_OFFLINE turns downloads off"
    # The HTTP library differs between versions of huggingface_hub.
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    return f"{constants.ENDPOINT} cannot be reached from here" if kinds & _NO_CONNECTION else None


def _how_to_get_access(repo: str) -> str:
    name = token_variable()
    if name is None:
        token = "set HF_TOKEN to a token of that account"
    else:
        token = f"check that the token in {name} is of that account and reads gated models, or set HF_TOKEN to another"
    return f"If the model is gated, accept its licence on {page_of(repo)} and {token}."


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"
