"""The meaning of a ledger's charges to others: certificates, accounts over studies, plans,
persons."""
