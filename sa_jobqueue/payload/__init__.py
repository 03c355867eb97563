"""Arguments as JSON: checked against the handler's annotations when a job is made, and again when it runs.

>>> def send(order_id: int, *, copies: int = 1) -> None: ...
>>> arguments = Arguments(send, task="shop.send")
>>> arguments.encode((7,), {"copies": 2})
'{"order_id":7,"copies":2}'
>>> arguments.decode('{"order_id": 7}')
((), {'order_id': 7})
>>> arguments.encode(("7",), {})
Traceback (most recent call last):
...
sa_jobqueue.errors.PayloadError: task 'shop.send': argument order_id: input should be a valid integer, got '7'

One JSON object is stored, `{parameter: value}`, with what the caller gave. A default is not stored: the one that the handler
has when the job runs is used. `*args` is a list under its own name; the names in `**kwargs` stand beside the parameters'.

Validation is pydantic's strict mode: no `"5"` for an integer, no integer for a bool. What is accepted comes back equal. Where
that is not sure (a union, a model, an `Any`), the JSON is decoded at once and compared. So `(1, 2)` for a parameter without
annotation is refused, because it would come back as a list. JSON and jsonb do not keep four things: the order of a dict's
keys, the sign of -0.0, whether a number from 1e16 on was a float (for a parameter annotated `float` it is one again), and
the name of a time zone (its offset at that moment stays).
"""

from __future__ import annotations

from .arguments import Arguments
from .binding import Selected, bound, bound_by_name
from .columns import Kind, kind_of, takes_none
from .inputs import Failed, Inputs, Part
from .plain import encode_plain, encode_result, load, load_any
from .results import Results
from .signature import Plan, signature
from .storable import MAX_DIGITS, MAX_PAYLOAD, shown, unstorable_text

__all__ = [
    "MAX_DIGITS", "MAX_PAYLOAD", "Arguments", "Failed", "Inputs", "Kind", "Part", "Plan", "Results", "Selected", "bound", "bound_by_name",
    "encode_plain", "encode_result", "kind_of", "load", "load_any", "shown", "signature", "takes_none",
    "unstorable_text",
]  # fmt: skip
