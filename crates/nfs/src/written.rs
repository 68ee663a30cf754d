//! Files that a client of NFSv4 writes in its own cache, as others are told of them.

use crate::handle::FileHandle;
use crate::server::Server;
use crate::v4::state::AskedAttributes;
use engine::{Attr, Cred, FlagsChange, FsError, FsHandle, FsResult, SetAttr};

/// Returns the attributes of a file that the client `writer` has delegated to write (RFC 8881, section 10.4.3): the size that it tells,
/// and, if it has written what it has not sent yet, times and a change number of now.
///
/// # Errors
/// [`FsError::Delegated`]: the client tells nothing, and is to give the file back; the caller asks again. Those of
/// [`FsHandle::getattr`].
pub(crate) async fn attributes(
    server: &Server,
    handle: &FileHandle,
    fs: &FsHandle,
    writer: u64,
) -> FsResult<Attr> {
    let asked = server.v4().ask_attributes(handle, writer);
    let (change, answer) = match asked {
        AskedAttributes::Asked { change, answer } => (change, answer),
        AskedAttributes::NotDelegated => return fs.getattr(handle.file).await,
        AskedAttributes::Later => return Err(FsError::Delegated),
    };
    let told = answer.await.ok().flatten().ok_or(FsError::Delegated)?;
    let attr = fs.getattr(handle.file).await?;
    if told.change == change || told.change == attr.change {
        return Ok(attr);
    }
    // The file's own change number grows with what is told, else it would go back if the client's data were lost. Not the time of the
    // content: the client sets that, to another one perhaps, when it sends what it wrote.
    let set = SetAttr {
        flags: Some(FlagsChange::default()),
        ..SetAttr::default()
    };
    let cred = Cred {
        holder: writer,
        ..Cred::root()
    };
    let after = match fs.setattr(handle.file, &set, None, &cred).await {
        Ok(change) => change.after,
        // Nor can the client send what it wrote.
        Err(FsError::ReadOnly | FsError::NoSpace) => return Ok(attr),
        Err(error) => return Err(error),
    };
    Ok(Attr {
        size: told.size,
        mtime: after.ctime,
        ..after
    })
}

/// Has a file given back that clients of NFSv4 have delegated, before it is changed, or read; for 3 s at most, and for clients that
/// would ask again late. What is to be done checks it all the same.
pub(crate) async fn given_back(server: &Server, handle: &FileHandle, fs: &FsHandle, change: bool) {
    let free = match (handle.snapshot, change) {
        (Some(_), _) => Ok(()),
        (None, true) => fs.check_delegations(handle.file, 0),
        (None, false) => fs.check_written_elsewhere(handle.file, 0),
    };
    if free.is_err() {
        let wait = server.v4().wait_given_back(handle);
        if let Some(wait) = wait {
            // An error says that it takes longer.
            let _ = wait.await;
        }
    }
}
