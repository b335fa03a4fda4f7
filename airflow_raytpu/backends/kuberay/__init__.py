"""RayCluster, RayJob and RayService objects of KubeRay 1.7 on GKE's TPU node pools."""
