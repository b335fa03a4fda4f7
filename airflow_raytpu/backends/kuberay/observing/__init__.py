"""What Kubernetes shows of a request, told apart kind by kind. Pure."""
