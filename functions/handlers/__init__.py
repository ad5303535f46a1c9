"""The deployed Lambda functions: one module each; what they share lies beside them."""
