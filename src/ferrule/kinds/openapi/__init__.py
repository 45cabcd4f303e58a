"""APIs described by OpenAPI documents, each as a tool with one action per operation."""
