"""What a component takes and declares, from source and, where that does not tell, from the component itself."""

from __future__ import annotations

import pytest

from rlvr.config.signature import signature


def test_a_signature_is_read_without_importing_its_module() -> None:
    parameters = {p.name: p for p in signature("rlvr.loss.lad.lad").parameters}
    assert parameters["eta"].annotation == "float"
    assert parameters["eta"].required
    with pytest.raises(ValueError, match="defines no"):
        signature("rlvr.loss.lad.nothing")
