"""Volumes: storage that outlives sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from ..exceptions import ConflictError, NotFoundError
from ..types import VolumeMount

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncVolume:
    def __init__(self, client: AsyncClient, info: Mapping[str, Any]) -> None:
        self._client = client
        self.info = dict(info)
        self.name: str = str(info.get("name", ""))
        self.kind: str = str(info.get("kind") or "volume")  # or "snapshot", which no sandbox can write
        self.source: Optional[str] = info.get("source")
        self.size_mb: int = int(info.get("size_mb") or 0)
        self.used_bytes: Optional[int] = info.get("used_bytes")
        self.mounted_by: List[str] = list(info.get("mounted_by") or ())
        self.created_at: str = str(info.get("created_at") or "")

    @property
    def id(self) -> str:
        return str(self.info.get("id") or self.name)

    def __repr__(self) -> str:
        what = " snapshot" if self.kind == "snapshot" else ""
        return f"<{type(self).__name__}{what} {self.name} {self.size_mb} MiB>"

    def mount(self, path: Optional[str] = None, read_only: bool = False) -> VolumeMount:
        """For the volumes= of a new sandbox; without a path it appears at /mnt/<name>. Snapshots are always read_only."""
        return VolumeMount(self.name, path, read_only or self.kind == "snapshot")

    @classmethod
    async def create(
        cls,
        name: str,
        size_gb: Optional[float] = None,
        *,
        size_mb: Optional[int] = None,
        source: Optional[str] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncVolume:
        """ConflictError when the name is taken."""
        return await _client(client).volumes.create(name, size_gb, size_mb=size_mb, source=source)

    @classmethod
    async def get(cls, name: str, *, client: Optional[AsyncClient] = None) -> AsyncVolume:
        return await _client(client).volumes.get(name)

    @classmethod
    async def get_or_create(
        cls,
        name: str,
        size_gb: Optional[float] = None,
        *,
        size_mb: Optional[int] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncVolume:
        """The volume of that name; the size counts only when it has to be made."""
        volumes = _client(client).volumes
        try:
            return await volumes.get(name)
        except NotFoundError:
            pass
        try:
            return await volumes.create(name, size_gb, size_mb=size_mb)
        except ConflictError:
            return await volumes.get(name)  # someone else made it between our two questions

    @classmethod
    async def list(cls, *, client: Optional[AsyncClient] = None) -> List[AsyncVolume]:
        return await _client(client).volumes.list()

    async def refresh(self) -> AsyncVolume:
        """Asks the server again: used_bytes, mounted_by and so on."""
        return self._now(await self._client.volumes.get(self.name))

    def _now(self, other: AsyncVolume) -> AsyncVolume:
        self.__init__(self._client, other.info)  # type: ignore[misc]
        return self

    async def resize(self, size_gb: Optional[float] = None, *, size_mb: Optional[int] = None) -> AsyncVolume:
        """Lets it grow, also while a sandbox writes it."""
        return self._now(await self._client.volumes.resize(self.name, size_gb, size_mb=size_mb))

    async def snapshot(self, name: Optional[str] = None) -> AsyncVolume:
        """What it holds now, for any number of readers and as a source of clones. Also while a sandbox writes it."""
        return await self._client.volumes.snapshot(self.name, name)

    async def snapshots(self) -> List[AsyncVolume]:
        return await self._client.volumes.snapshots(self.name)

    async def clone(self, name: str, size_gb: Optional[float] = None, *, size_mb: Optional[int] = None) -> AsyncVolume:
        """Another volume with what this one, or this snapshot, holds now."""
        return await self._client.volumes.create(name, size_gb, size_mb=size_mb, source=self.name)

    async def delete(self) -> None:
        """ConflictError while a sandbox has it mounted."""
        await self._client.volumes.delete(self.name)


def _client(client: Optional[AsyncClient]) -> AsyncClient:
    from .client import client_for

    return client_for(client)
