"""Whether a server answers, asked of its address /health. Without mlflow, whose own attempts take minutes."""

import http.client
import urllib.error
import urllib.request
from urllib.parse import urlsplit, urlunsplit

ANSWER_S = 3.0  # how long to wait for an answer
LONGEST = 1 << 20  # bytes of an answer


def fault_of_server(uri: str) -> str:
    """Why an http(s) server cannot be used, as `does not answer (...)`; "" if it can. Without the password of the URI.

    Below 500 the server answers, though a gateway in front of it may have no /health.
    """
    parts = urlsplit(uri)
    server = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        with urllib.request.urlopen(f"{server}/health", timeout=ANSWER_S) as answer:
            is_endless = len(answer.read(LONGEST)) == LONGEST
    except urllib.error.HTTPError as error:
        return f"answers {error.code} {error.reason}" if error.code >= 500 else ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"does not answer ({getattr(error, 'reason', error)})"
    return "is no MLflow: its answer to /health is endless" if is_endless else ""
