import math

import pytest

from rlvr.trainer.diverged import Diverged, check_limits


def test_a_limit_that_is_passed_is_named_with_its_step() -> None:
    for metrics, message in (
        ({"policy/entropy": 0.09, "policy/kl_base": 1.0}, "entropy collapse at step 7: policy/entropy is 0.09"),
        ({"policy/entropy": math.nan}, "entropy collapse at step 7: policy/entropy is nan"),
        ({"policy/entropy": 0.1, "policy/kl_base": 2.5}, "KL blow-up at step 7: policy/kl_base is 2.5, max_kl=2"),
    ):
        with pytest.raises(Diverged, match=message):
            check_limits(metrics, 7, min_entropy=0.1, max_kl=2.0, pretrained=True)


def test_at_a_limit_and_without_one_training_goes_on() -> None:
    check_limits({"policy/entropy": 0.1, "policy/kl_base": 2.0}, 7, min_entropy=0.1, max_kl=2.0, pretrained=True)
    check_limits(
        {"policy/entropy": 0.0, "policy/kl_base": math.inf}, 7, min_entropy=None, max_kl=None, pretrained=False
    )


@pytest.mark.parametrize(("step", "metric"), [(1, "policy/kl_old"), (2, "policy/kl_base")])
def test_first_updates_that_destroy_a_pretrained_model_end_the_run_with_what_to_type(step: int, metric: str) -> None:
    def check(kl: float, *, step: int = step, max_kl: float | None = None, pretrained: bool = True) -> None:
        check_limits({metric: kl}, step, min_entropy=None, max_kl=max_kl, pretrained=pretrained)

    with pytest.raises(Diverged, match=rf"{metric} is 0\.33 .*Pass a tenth .*or max_kl=100"):
        check(0.33)  # SmolLM2, all weights at lr=2e-4
    check(0.0051)  # its adapters at the same rate: accuracy goes from 8 to 94 % in ten steps
    check(0.33, max_kl=100)
    check(0.33, pretrained=False)  # a small model made for its task
    check(0.33, step=20)  # far from its base policy after many steps: it has learned
