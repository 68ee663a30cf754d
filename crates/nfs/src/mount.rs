//! MOUNT version 3 (RFC 1813, appendix I): a path becomes the handle of its directory.
//!
//! Version 1 is answered for its lists only (`showmount` of old systems); its handles are too short for ours.

use crate::connection::Peer;
use crate::exports::{Flavour, Flavours};
use crate::handle::{FileHandle, in_snapshot};
use crate::outcome::Outcome;
use crate::rpc::{self, Call, Refusal};
use crate::server::{ServedExport, Server};
use crate::xdr::{self, Reader};
use engine::{Cred, FileType, FsError};
use std::sync::Arc;

/// Program number of MOUNT.
pub(crate) const PROGRAM: u32 = 100_005;

/// RFC 1813, section 5.1.1: MNTPATHLEN.
const PATH_MAX: usize = 1024;
/// Mounts remembered for `showmount -a`; the list is a courtesy, and clients that vanish never leave it.
const MOUNTS_MAX: usize = 4096;

/// RFC 1813, section 5.1.5: mountstat3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Status {
    NoEntry = 2,
    Io = 5,
    Access = 13,
    NotDirectory = 20,
    ServerFault = 10006,
}

pub(crate) async fn call(
    server: &Server,
    peer: Peer,
    call: &Call,
    mut arguments: Reader<'_>,
) -> Outcome {
    let mut w = rpc::success(call.xid, 256);
    let client = peer.ip().to_canonical();
    match call.procedure {
        0 => {}
        1 if call.version == 3 => {
            let path = match path(&mut arguments) {
                Ok(path) => path,
                Err(malformed) => return malformed.into(),
            };
            match mount(server, peer, &path).await {
                Ok((handle, flavours)) => {
                    let numbers: Vec<u32> = flavours.iter().map(Flavour::number).collect();
                    w.u32(0).opaque(&handle.encode());
                    w.u32(u32::try_from(numbers.len()).expect("there are four"));
                    for number in numbers {
                        w.u32(number);
                    }
                    let mut mounts = server.mounts();
                    if mounts.entries.len() < MOUNTS_MAX {
                        mounts.entries.insert((client, path));
                    }
                }
                Err(status) => {
                    w.u32(status as u32);
                }
            }
        }
        2 => {
            for (client, path) in &server.mounts().entries {
                w.bool(true)
                    .opaque(client.to_string().as_bytes())
                    .opaque(path.as_bytes());
            }
            w.bool(false);
        }
        3 => match path(&mut arguments) {
            Ok(path) => {
                server.mounts().entries.remove(&(client, path));
            }
            Err(malformed) => return malformed.into(),
        },
        4 => server
            .mounts()
            .entries
            .retain(|(other, _)| *other != client),
        5 => {
            for served in server.exports().values() {
                w.bool(true).opaque(served.export.path.as_bytes());
                for group in served.rules.groups() {
                    w.bool(true).opaque(group.as_bytes());
                }
                w.bool(false);
            }
            w.bool(false);
        }
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    }
    w.into()
}

fn path(arguments: &mut Reader<'_>) -> xdr::Result<String> {
    let path = arguments.opaque(PATH_MAX)?;
    Ok(String::from_utf8_lossy(path).into_owned())
}

/// Finds the export with the longest path that `path` lies in, and walks the rest.
///
/// The flavours are those that the share takes: which one the call itself has is no matter, clients choose one of them for what follows.
async fn mount(server: &Server, peer: Peer, path: &str) -> Result<(FileHandle, Flavours), Status> {
    let wanted = components(path);
    let exports = server.exports();
    let best = exports
        .iter()
        .map(|(guid, served)| (*guid, served, components(&served.export.path)))
        .filter(|(_, _, own)| wanted.starts_with(own))
        .max_by_key(|(_, _, own)| own.len());
    let (guid, served, own) = best.ok_or(Status::NoEntry)?;
    // A share one may not use looks the same whether or not the path exists in it.
    let access = server.access_of(guid, served, peer).ok_or(Status::Access)?;
    let rest = wanted.get(own.len()..).unwrap_or_default();
    if rest.contains(&"..") {
        return Err(Status::NoEntry);
    }
    let handle = walk(guid, served, rest)
        .await
        .map_err(|error| match error {
            FsError::NotFound | FsError::Stale => Status::NoEntry,
            FsError::NotDirectory => Status::NotDirectory,
            FsError::Io | FsError::Corrupt(_) => Status::Io,
            _ => Status::ServerFault,
        })?;
    Ok((handle, access.flavours))
}

async fn walk(guid: u64, served: &Arc<ServedExport>, rest: &[&str]) -> Result<FileHandle, FsError> {
    let mut fs = served.export.fs.clone();
    let mut attr = fs.root().await?;
    let mut handle = FileHandle {
        dataset: guid,
        identity: served.identity,
        snapshot: None,
        file: attr.id,
    };
    for name in rest {
        let found = fs.find(attr.id, name.as_bytes(), &Cred::root()).await?;
        attr = found.attr;
        if attr.file_type != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        if let Some(there) = found.elsewhere {
            handle.snapshot = in_snapshot(&there);
            fs = there;
        }
        handle.file = attr.id;
    }
    Ok(handle)
}

/// Returns the names of a path.
fn components(path: &str) -> Vec<&str> {
    path.split('/')
        .filter(|name| !name.is_empty() && *name != ".")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_by_their_names() {
        assert_eq!(components("/tank//vm/./a/"), ["tank", "vm", "a"]);
        assert!(!components("/tank/vmware").starts_with(&components("/tank/vm")));
    }
}
