"""Export a fine-tuned Hugging Face folder from Python, without recipe, data or network.

Run: python examples/export_ready_model.py my-finetuned-model phone
"""

from __future__ import annotations

import sys

from pocketbert import GateError, InputError, api, load


def main(model: str, output: str) -> None:
    """Export the model, then predict with the exported folder."""
    try:
        folder = api.export(model, output)
    except InputError as error:
        sys.exit("\n".join(map(str, error.problems)))
    except GateError as error:
        sys.exit("not packed:\n" + "\n".join(error.failures))
    print(load(folder).predict(["a text of yours"])[0])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
