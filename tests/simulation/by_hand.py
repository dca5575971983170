"""Deliberate bugs that no generated mutation makes: mistakes one could make in the protocol itself.

Rules
  1. `old` stands once in the function, as `ast.unparse` writes it, and `new` takes its place.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ByHand(NamedTuple):
    """`name` says what is wrong."""

    name: str
    function: str
    old: str
    new: str


BY_HAND: Final = (
    ByHand(
        "scores are of the number",
        "view.View.owner_of",
        "score(hashed, member.place)",
        "score(hashed, member.number)",
    ),
    ByHand("who drains goes on owning", "view.View.owner_of", "if not member.drains", "if True"),
    ByHand("unproven members are not waited for", "view.View.members_to_register", " | self.unproven", ""),
    ByHand(
        "a registration of any epoch is one",
        "member.Member._begin_if_registered",
        "peer.registered < owned.since_epoch",
        "peer.registered == 0",
    ),
    ByHand(
        "grants of older epochs are acted on",
        "member.Member._process",
        "message.epoch == self.view.epoch",
        "message.epoch <= self.view.epoch",
    ),
    ByHand("an end of a link ends the member", "lending.Lending.unlinked", "borrower.epoch = 0", "self.ended(member)"),
    ByHand(
        "slots are registered without the last one",
        "borrowing.Borrowing.register",
        "in self.in_use.items()])",
        "in self.in_use.items()][:-1])",
    ),
    ByHand(
        "registration comes after the word that it is over",
        "member.Member._register_with",
        "epoch = self.view.epoch",
        "epoch = self.view.epoch\n    self._send(number, Registered(epoch, ''))",
    ),
)
