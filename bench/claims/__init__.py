"""Ways of claiming an index that are compared with the product's (`activator/members/claims/`)."""
