"""The ways of claiming an index that are measured beside the one of the product (`activator/members/claims/`)."""
