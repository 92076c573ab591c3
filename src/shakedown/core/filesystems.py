"""Which kinds of file system lie on another machine, by their names in the kernel's mount table."""

from __future__ import annotations

NETWORK_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "ceph", "lustre", "glusterfs", "gpfs", "beegfs", "9p", "virtiofs"),
    *(
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.juicefs",
        "fuse.gcsfuse",
        "fuse.s3fs",
        "fuse.blobfuse",
    ),
)


def is_network(kind: str) -> bool:
    """`kind` such as "ext4" or "nfs4": versions of one system begin alike."""
    return kind.startswith(NETWORK_FILE_SYSTEMS)
