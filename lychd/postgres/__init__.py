"""PostgreSQL as the product meets it: the URL, the embedded server, the connection budget. Knows no table."""
