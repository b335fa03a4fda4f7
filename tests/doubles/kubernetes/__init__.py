"""A fake Kubernetes API server, and the KubeRay controller behind it."""
