"""What is trained: a shared TopK SAE behind a choice of site, and the loss that RouteSAE's code minimises."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from latentbench.adapters import (
    Codes,
    Dictionary,
    DictionaryCard,
    InputTransform,
    RouteSae,
    Routing,
    SaeWeights,
    SparseAutoencoder,
    TopKGate,
    codes_from_topk,
    decode_rows,
    route_tokens,
)
from latentbench.lm import Site
from latentbench.train._recipe import Recipe, TraineeSpec

__all__ = ["Trainee"]


class Trainee(nn.Module):
    """A TopK SAE under training, reading one site, a routed site or a random site."""

    def __init__(
        self, spec: TraineeSpec, recipe: Recipe, d_model: int, sites: tuple[Site, ...], seed: int
    ) -> None:
        """Fresh weights: Kaiming-uniform encoder and router, decoder the encoder's normalised copy, zero biases.

        Args:
            spec: which kind.
            recipe: sizes and sparsity.
            d_model: width of the activations.
            sites: the routed sites in router order.
            seed: of the initialisation; trainees of one recipe start from the same encoder.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(d_model)  # nn.Linear's default, which the official code keeps
        encoder = torch.empty(recipe.latents, d_model).uniform_(-bound, bound, generator=generator)
        self.spec = spec
        self.k = recipe.k
        self.sites = sites
        self.w_enc = nn.Parameter(encoder)
        self.w_dec = nn.Parameter(encoder / encoder.norm(dim=1, keepdim=True))
        self.b_enc = nn.Parameter(torch.zeros(recipe.latents))
        self.b_pre = nn.Parameter(torch.zeros(d_model))
        router = torch.empty(len(sites), d_model).uniform_(-bound, bound, generator=generator)
        if spec.kind == "random":
            router = router / router.norm(dim=1, keepdim=True)
        self.router = nn.Parameter(router, requires_grad=spec.kind == "routesae")

    @property
    def routing(self) -> Routing:
        """How tokens get their site, unless there is but one."""
        return "random" if self.spec.kind == "random" else "hard"

    def choose(self, stacked: Tensor) -> Tensor:
        """The input of each token, `Float[Tensor, "token d"]`, from standardised `Float[Tensor, "site token d"]`."""
        if self.spec.kind == "topk":
            return stacked[-1]
        route, probability = route_tokens(stacked, self.router, self.spec.pooling, self.routing)
        return stacked[route, torch.arange(len(route), device=route.device)] * probability[:, None]

    def forward(self, stacked: Tensor) -> tuple[Tensor, Codes]:
        """Normalised MSE of each token, `Float[Tensor, "token"]`, and the codes.

        The error is mean_d (xhat - x)^2 / mean_d x^2 on the standardised, routed and p-scaled x: the loss of
        RouteSAE's code (its equation 12 has the plain squared error).
        """
        inputs = self.choose(stacked)
        pre = nn.functional.linear(inputs - self.b_pre, self.w_enc, self.b_enc)
        codes = codes_from_topk(pre, self.k, rectify=False)
        error = decode_rows(codes, self.w_dec, self.b_pre) - inputs
        return error.square().mean(dim=1) / inputs.square().mean(dim=1), codes

    @torch.no_grad()
    def normalise_decoder(self) -> None:
        """Set every decoder row to unit norm."""
        self.w_dec.div_(self.w_dec.norm(dim=1, keepdim=True))

    def dictionary(self, card: DictionaryCard) -> Dictionary:
        """A frozen dictionary with the present weights."""
        parts = {name: value.detach().clone() for name, value in self.named_parameters()}
        weights = SaeWeights(parts["w_enc"], parts["b_enc"], parts["w_dec"], parts["b_pre"], parts["b_pre"])
        gate, transform = TopKGate(self.k, rectify=False), InputTransform("standardise", 1e-6)
        if self.spec.kind == "topk":
            return SparseAutoencoder(card, weights, gate, transform)
        inner = card.model_copy(update={"reads": card.reads[:1], "writes": card.writes[:1]})
        sae = SparseAutoencoder(inner, weights, gate, transform)
        return RouteSae(card, parts["router"], sae, self.spec.pooling, "corrected", self.routing)
