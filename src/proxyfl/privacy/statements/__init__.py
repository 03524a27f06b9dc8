"""What a ledger's charges mean to others: certificates, accounts over studies, plans, persons."""
