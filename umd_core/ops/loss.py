"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, INDEX, bool_
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import ABSENT, View


def _shape(call: Call) -> tuple[Shape, ...]:
    scores, labels = call.desc(0).shape, call.desc(1).shape
    names = [i.name for i in call.template.inputs]
    if len(scores) < 2:
        raise call.error(f"has shape {list(scores)}; (N, C, …) would be right", input=names[0])
    if labels != scores[:1] + scores[2:]:
        expected = [*scores[:1], *scores[2:]]
        raise call.error(f"has shape {list(labels)}; {expected}, without the classes, would be right", input=names[1])
    if call.has(2) and call.desc(2).shape != scores[1:2]:
        detail = f"has shape {list(call.desc(2).shape)}; [{scores[1]}], one number a class, would be right"
        raise call.error(detail, input=names[2])
    loss = labels if call.attr("reduction") == "none" else ()
    return (loss, scores)[: len(call.template.results)]


def _emit_likelihood(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    weights = views[2] if call.has(2) else ABSENT
    return _emit_loss(recorder, call, views[0], views[1], weights)


def _emit_cross_entropy(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    scores = views[0]
    logs = recorder.out(call, 1) if call.wants(1) else recorder.like(scores)
    order = [0, *range(2, scores.rank), 1]
    extents = {"outer": tuple(scores.shape[a] for a in order[:-1]), "inner": scores.shape[1:2]}
    recorder.launch("log_softmax_kernel", extents, {"x": scores.permute(order), "y": logs.permute(order)})
    weights = views[2] if call.has(2) else ABSENT
    return _emit_loss(recorder, call, logs, views[1], weights), logs if call.wants(1) else None


def _emit_loss(recorder: Recorder, call: Call, logs: View, labels: View, weights: View) -> View:
    """Records -weight[label] · log[label] of every label, 0 where the label is to be ignored, and their reduction."""
    wide, shape = accumulator(logs.dtype), labels.shape
    counted, labels = _counted(recorder, call, labels)
    loss = widen(recorder, _picked(recorder, logs.permute([0, *range(2, logs.rank), 1]), labels))
    loss = recorder.expression("neg", (loss,), recorder.new(wide, shape))
    share = ABSENT
    if weights:
        table = View(
            weights.buffer, weights.dtype, (*shape, logs.shape[1]), (0,) * len(shape) + weights.strides, weights.offset
        )
        share = widen(recorder, _picked(recorder, table, labels))
        recorder.expression("mul", (loss, share), loss)
    if counted:
        zero = recorder.scalar(0, wide)
        recorder.expression("select", (counted, loss, zero), loss)
        own = share or recorder.scalar(1, wide)
        share = recorder.expression("select", (counted, own, zero), recorder.new(wide, shape))
    return _reduced(recorder, call, loss, share)


def _counted(recorder: Recorder, call: Call, labels: View) -> tuple[View, View]:
    """Returns which labels are not to be ignored (absent: all count), and labels that are safe to look up."""
    ignored = call.attr("ignore_index")
    if ignored is None:
        return ABSENT, labels
    mark = recorder.scalar(ignored, labels.dtype)
    counted = recorder.expression("ne", (labels, mark), recorder.new(bool_, labels.shape))
    zero = recorder.scalar(0, labels.dtype)
    return counted, recorder.expression("select", (counted, labels, zero), recorder.like(labels))


def _picked(recorder: Recorder, table: View, labels: View) -> View:
    """Returns table[…, label] as a new tensor."""
    return recorder.gather(table, labels, recorder.new(table.dtype, labels.shape), table.shape[-1])


def _reduced(recorder: Recorder, call: Call, loss: View, share: View) -> View:
    """Returns the losses, their sum, or their mean weighted by `share` (absent: all count alike)."""
    out, reduction = recorder.out(call), call.attr("reduction")
    if reduction == "none":
        return recorder.copy(loss, out)
    axes = range(loss.rank)
    name = "mean" if reduction == "mean" and not share else "sum"
    total = recorder.reduce(name, loss, axes, recorder.new(loss.dtype, ()))
    if reduction == "sum" or not share:
        return recorder.copy(total, out)
    return compute(recorder, "div", (total, recorder.reduce("sum", share, axes, recorder.new(loss.dtype, ()))), out)


_ATTRIBUTES = (
    Attribute("ignore_index", "int"),
    Attribute("reduction", "string", "mean", choices=("none", "sum", "mean")),
)
_TYPES = {"T": FLOATS, "Tind": INDEX}
TEMPLATES = (
    OpTemplate(
        "NegativeLogLikelihoodLoss",
        (Input("input"), Input("target", "Tind"), Input("weight", optional=True)),
        (Result("loss"),),
        _shape,
        _emit_likelihood,
        _TYPES,
        _ATTRIBUTES,
        flops=lambda call: 2 * call.desc(1).element_count,
        doc="-input[n, target[n, …], …], weighted by class; a target of ignore_index counts nowhere.",
    ),
    OpTemplate(
        "SoftmaxCrossEntropyLoss",
        (Input("scores"), Input("labels", "Tind"), Input("weights", optional=True)),
        (Result("output"), Result("log_prob", optional=True)),
        _shape,
        _emit_cross_entropy,
        _TYPES,
        _ATTRIBUTES,
        flops=lambda call: 5 * call.desc(0).element_count,
        doc="NegativeLogLikelihoodLoss of LogSoftmax over the classes, axis 1 of scores; log_prob is that LogSoftmax.",
    ),
)
