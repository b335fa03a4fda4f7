"""What KubeRay 1.7.0, the scheduler, the kubelet and GKE's webhook do to a cluster's objects."""
