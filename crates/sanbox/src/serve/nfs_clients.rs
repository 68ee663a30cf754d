//! The record of NFSv4's clients, which outlives the daemon: a file of the state directory.

use std::io;

use manage::state::StateDirectory;

use crate::logging::NFS;

/// See the module.
pub(super) struct ClientFile(pub(super) StateDirectory);

impl nfs::ClientRecord for ClientFile {
    fn read(&self) -> Vec<u8> {
        self.0.read_nfs_clients().unwrap_or_else(|error| {
            tracing::error!(
                target: NFS,
                "{error}; clients of NFSv4 lose what they had open and locked"
            );
            Vec::new()
        })
    }

    fn write(&self, record: &[u8]) -> io::Result<()> {
        self.0.write_nfs_clients(record).map_err(|error| {
            tracing::error!(
                target: NFS,
                "{error}; after a restart clients of NFSv4 may lose what they have open and locked"
            );
            io::Error::other(error)
        })
    }
}
