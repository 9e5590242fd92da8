"""Pictures of texts that several speakers wrote."""

from __future__ import annotations

import numpy as np

CELL = 24  # pixels of a token
LINE = 19  # tokens in a line


def picture(
    vocabulary: tuple[str, ...], text: np.ndarray, speakers: np.ndarray, seen: int
) -> np.ndarray:
    """Draw the first `seen` tokens of a text, each in its speaker's color: uint8 [H, W, 3].

    vocabulary: texts of the tokens. text, speakers: int32 [L], tokens and who wrote them, by the
    numbers of `conversing`.
    """
    from PIL import Image, ImageDraw, ImageFont  # late: training never draws

    from jaxrl.envs.drawing import BLUE, GREEN, INK, PAPER, SHADE

    colors, width = (INK, BLUE, GREEN), min(len(text), LINE)
    lines = -(-len(text) // LINE)
    image = Image.new("RGB", (max(CELL * (width + 1), 160), 80 + 40 * lines), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle([CELL // 2, 40, CELL // 2 + CELL * width, 40 + 40 * lines], fill=SHADE)
    font = ImageFont.load_default(CELL)
    for i in range(seen):
        row, column = divmod(i, LINE)
        place, color = (CELL * (column + 1), 60 + 40 * row), colors[int(speakers[i])]
        draw.text(place, vocabulary[int(text[i])], fill=color, font=font, anchor="mm")
    return np.asarray(image)
