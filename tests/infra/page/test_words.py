"""A decision in words, as the page says it."""

from __future__ import annotations

import pytest

from infra.page.views import percent


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(0.0, "≈ 0 %"), (1e-5, "< 0.01 %"), (0.0081, "0.81 %"), (0.1465, "14.65 %"), (0.15, "15 %"),
     (0.99995, "> 99.99 %"), (1.0, "100 %")],
)  # fmt: skip
def test_a_risk_in_a_sentence_is_written_as_in_the_table_beside_it(ratio: float, said: str) -> None:
    assert percent(ratio) == said
