"""From a request to jobs in the ledger: checks, sizes, arrays and the one transaction that stores them."""
