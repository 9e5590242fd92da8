"""Pictures of texts that several speakers wrote."""

from __future__ import annotations

import numpy as np

CELL = 24  # pixels of a token of one or two letters, and the height of letters
LETTER = 15  # pixels of a letter of longer tokens
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
    longest = max(len(token.strip()) for token in vocabulary)
    cell = CELL if longest < 3 else LETTER * longest
    lines = -(-len(text) // LINE)
    image = Image.new("RGB", (max(cell * (width + 1), 160), 80 + 40 * lines), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle([cell // 2, 40, cell // 2 + cell * width, 40 + 40 * lines], fill=SHADE)
    font = ImageFont.load_default(CELL)
    for i in range(seen):
        row, column = divmod(i, LINE)
        place, color = (cell * (column + 1), 60 + 40 * row), colors[int(speakers[i])]
        draw.text(place, vocabulary[int(text[i])], fill=color, font=font, anchor="mm")
    return np.asarray(image)
