"""Write the policy of `test_export.policy_of` as ONNX, in a process of its own.

jax2onnx replaces functions of JAX, of which the other tests are not to see anything.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jaxrl.core.errors import UserError
from jaxrl.export import compiled
from jaxrl.export.acting import acting
from tests.export.test_export import policy_of

if __name__ == "__main__":
    name, path = sys.argv[1:]
    try:
        compiled.write_onnx(acting(*policy_of(name)), Path(path), {"env": "x"})
    except UserError as error:
        print(error)
