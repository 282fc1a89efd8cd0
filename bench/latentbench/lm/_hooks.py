"""Hooks on a model for the length of one forward pass, and the pass-through blocks that `resume` puts in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from latentbench.errors import LatentbenchError, UserError
from latentbench.lm._edits import Edit, EditView
from latentbench.lm._layouts import BlockLayout, Tap, submodule
from latentbench.lm._sites import Site

__all__ = ["StopForward", "hooked", "resumed"]

Visit = Callable[[Site, Tensor], Tensor]
"""What happens at a site: edits and capture."""


class StopForward(Exception):
    """Raised inside a forward pass once the last captured site has been seen; never leaves this package."""


@contextmanager
def hooked(
    model: nn.Module,
    layout: BlockLayout,
    *,
    edits: Sequence[Edit],
    view: EditView,
    capture: Mapping[Site, list[Tensor]],
    stop_after: Site | None,
) -> Iterator[None]:
    """Apply edits and record activations while the body runs a forward pass of `model`.

    What is recorded at a site is what goes on from there: the edited activation if the site is edited.

    Args:
        model: a causal LM of the given layout.
        layout: where its sites are.
        edits: applied in their order; several at one site all act.
        view: the tokens of this pass, handed to the edits.
        capture: sites to record; each activation is appended to the site's list.
        stop_after: raise `StopForward` once this site has been seen.

    Raises:
        LatentbenchError: an edit's site was never reached, so that the edit could not act.
    """
    by_site: dict[Site, list[Edit]] = {}
    for edit in edits:
        by_site.setdefault(edit.site, []).append(edit)
    seen: set[Site] = set()

    def visit(site: Site, value: Tensor) -> Tensor:
        seen.add(site)
        for edit in by_site.get(site, ()):
            value = edit.apply(value, view)
        if site in capture:
            capture[site].append(value)
        return value

    with ExitStack() as stack:
        for site in sorted({*by_site, *capture}):
            stack.enter_context(_tapped(model, layout, site, visit, stop=site == stop_after))
        yield
    unreached = sorted(set(by_site) - seen)
    if unreached:
        raise LatentbenchError(
            f"an edit at {', '.join(map(str, unreached))} touched nothing: the forward pass never reached "
            "that site (it resumed after it, or stopped before it)"
        )


@contextmanager
def _tapped(model: nn.Module, layout: BlockLayout, site: Site, visit: Visit, *, stop: bool) -> Iterator[None]:
    blocks = submodule(model, layout.blocks)
    assert isinstance(blocks, nn.ModuleList)
    tap = Tap("", "input") if site.layer is None else layout.taps[site.kind]
    block = blocks[site.layer or 0]
    module = submodule(block, tap.path)
    if module is None:
        raise UserError(f"site {site} lies before the site that this forward pass resumes from")
    with ExitStack() as stack:
        if tap.side == "output":
            handle = module.register_forward_hook(_output_hook(site, visit, stop=stop))
        else:
            # The tap of resid_mid is the branch into the MLP's norm: the stream beside it gets the change at
            # the block's end.
            changes: list[Tensor] | None = [] if site.kind == "resid_mid" else None
            handle = module.register_forward_pre_hook(
                _input_hook(site, visit, changes, stop=stop), with_kwargs=True
            )
            if changes is not None:
                stack.callback(block.register_forward_hook(_add_hook(changes)).remove)
        stack.callback(handle.remove)
        yield


def _input_hook(site: Site, visit: Visit, changes: list[Tensor] | None, *, stop: bool) -> Any:
    def on_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: Tensor = args[0] if args else kwargs["hidden_states"]
        value = visit(site, given)
        if changes is not None and value is not given:
            changes.append(value - given)
        if stop:
            raise StopForward
        return ((value, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": value})

    return on_input


def _output_hook(site: Site, visit: Visit, *, stop: bool) -> Any:
    def on_output(_module: nn.Module, _args: Any, output: Any) -> Any:
        # Block outputs are tensors in some versions of transformers and tuples in others; attention gives a
        # tuple.
        value = visit(site, output[0] if isinstance(output, tuple) else output)
        if stop:
            raise StopForward
        return (value, *output[1:]) if isinstance(output, tuple) else value

    return on_output


def _add_hook(changes: list[Tensor]) -> Any:
    def on_output(_module: nn.Module, _args: Any, output: Any) -> Any:
        if not changes:
            return output
        change = changes.pop()
        return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

    return on_output


class _PassThrough(nn.Module):
    """Stands in for a block that is not run: hands its input on, or `hidden` if it has one."""

    def __init__(self, block: nn.Module, hidden: Tensor | None) -> None:
        super().__init__()
        own = set(self.__dict__)
        # Some models read plain attributes of a block (its attention type) outside of it.
        self.__dict__.update({name: value for name, value in block.__dict__.items() if name not in own})
        self._replacement = (hidden,)

    def forward(self, hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        hidden = self._replacement[0]
        return hidden_states if hidden is None else hidden


@contextmanager
def resumed(model: nn.Module, layout: BlockLayout, site: Site, hidden: Tensor) -> Iterator[None]:
    """Start forward passes in the body at `site`, with `hidden` as its activation.

    Args:
        model: a causal LM of the given layout.
        layout: where its blocks are.
        site: a `resid_post` site; it and the blocks before it are not run.
        hidden: `Float[Tensor, "row pos d"]`.
    """
    blocks = submodule(model, layout.blocks)
    assert isinstance(blocks, nn.ModuleList)
    assert site.layer is not None
    kept = [blocks[index] for index in range(site.layer + 1)]
    try:
        for index, block in enumerate(kept):
            blocks[index] = _PassThrough(block, hidden if index == site.layer else None)
        yield
    finally:
        for index, block in enumerate(kept):
            blocks[index] = block
