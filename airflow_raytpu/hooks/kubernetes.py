"""Credentials for the Kubernetes API server from a connection of the cncf-kubernetes provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_raytpu.model.errors import ForbiddenError, NotInstalledError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """Inside the cluster, a kubeconfig (GKE's with its login plugin among them), or a context of one.

    :param conn_id: a connection of type ``kubernetes``.
    """

    conn_id: str

    @property
    def key(self) -> str:
        """Equal for those who may share a client."""
        return self.conn_id

    async def client(self) -> ApiClient:
        """A client with credentials as they are now; they are read anew each time.

        :raises NotInstalledError: there is no such connection.
        :raises ForbiddenError: it contradicts itself.
        """
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
        from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
        from kubernetes_asyncio.client import ApiClient

        # The provider's own client is made for one call and then closed; only what it found out is of use.
        try:
            async with AsyncKubernetesHook(conn_id=self.conn_id).get_conn() as theirs:
                return ApiClient(configuration=theirs.configuration)
        except AirflowNotFoundException as error:
            raise NotInstalledError(
                f"There is no Kubernetes connection {self.conn_id!r}.",
                f"airflow connections add {self.conn_id} --conn-type kubernetes, or name another one in the raytpu "
                "connection (kubernetes_conn_id).",
            ) from error
        except AirflowException as error:
            raise ForbiddenError(
                f"The Kubernetes connection {self.conn_id!r} cannot be used: {error}", "Correct it in Airflow."
            ) from error
