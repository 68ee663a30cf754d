//! Kerberos of NFS (RFC 2203): proofs of clients are taken by the machine's library, and become users of this machine.
//!
//! Users are those of `/etc/passwd` and `/etc/group`, under the names that krb5.conf makes of principals: `user@REALM` of the default realm
//! is `user`, and `auth_to_local` says others. A principal that is no user, such as a machine's (`host/...`, `nfs/...`), is the anonymous
//! user of each share, whatever it squashes: so it is with Linux's server (rpc.svcgssd).

use std::path::Path;
use std::sync::Arc;

use gss::Acceptor;
use nfs::{
    AcceptedContext, AcceptedToken, KerberosAcceptor, KerberosUser, RefusedToken, SecurityContext,
    UnixIds,
};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::logging::{LogLimit, NFS};
use crate::names;

/// The service that clients ask tickets for: `nfs/HOST@REALM`.
const SERVICE: &str = "nfs";
/// Tokens that are looked at at once: each takes about a millisecond, and a thread.
const TOKENS_MAX: usize = 8;
/// RFC 2744, section 3.9.1: GSS_S_FAILURE.
const FAILURE: u32 = 13 << 16;

/// Takes the proofs of NFS clients by the keys in a keytab.
struct NfsKerberos {
    acceptor: Arc<Acceptor>,
    permits: Arc<Semaphore>,
}

/// Returns what takes the proofs of clients, if a keytab is set. The log says what stands in the way of it.
pub(crate) fn acceptor(keytab: Option<&Path>) -> Option<Arc<dyn KerberosAcceptor>> {
    let keytab = keytab?;
    let acceptor = match Acceptor::new(SERVICE, keytab) {
        Ok(acceptor) => acceptor,
        Err(error) => {
            tracing::error!(target: NFS, "no client can use Kerberos: {:#}", anyhow::Error::new(error));
            return None;
        }
    };
    match acceptor.check() {
        Ok(()) => tracing::info!(target: NFS, "clients may use Kerberos: {}", keytab.display()),
        Err(error) => {
            tracing::error!(
                target: NFS,
                "no client can use Kerberos until there is a key of {SERVICE}/HOST in {}: {error}",
                keytab.display()
            );
        }
    }
    Some(Arc::new(NfsKerberos {
        acceptor: Arc::new(acceptor),
        permits: Arc::new(Semaphore::new(TOKENS_MAX)),
    }))
}

impl KerberosAcceptor for NfsKerberos {
    fn accept(&self, token: Vec<u8>) -> AcceptedToken {
        let (acceptor, permits) = (Arc::clone(&self.acceptor), Arc::clone(&self.permits));
        Box::pin(async move {
            let failed = || RefusedToken {
                major: FAILURE,
                minor: 0,
                token: Vec::new(),
            };
            let _permit = permits.acquire().await.map_err(|_| failed())?;
            let accepted = spawn_blocking(move || accept(&acceptor, &token)).await;
            accepted.map_err(|_| failed())?
        })
    }
}

/// Any host that can connect sends tokens.
static REFUSED: LogLimit = LogLimit::new();

fn accept(acceptor: &Acceptor, token: &[u8]) -> Result<AcceptedContext, RefusedToken> {
    let accepted = acceptor.accept(token).map_err(|error| {
        if let Some(more) = REFUSED.admit() {
            tracing::info!(target: NFS, "a client's proof by Kerberos is refused: {error}{more}");
        }
        RefusedToken {
            major: error.major,
            minor: error.minor,
            token: error.token,
        }
    })?;
    let name = accepted.local_name.as_deref();
    let ids = name.and_then(|name| ids_of_user(&names::users(), &names::groups(), name));
    match &ids {
        Some(ids) => tracing::debug!(
            target: NFS,
            "{} uses Kerberos, as user {}",
            accepted.principal,
            ids.uid
        ),
        None => tracing::debug!(
            target: NFS,
            "{} uses Kerberos, as no user of this machine",
            accepted.principal
        ),
    }
    Ok(AcceptedContext {
        context: Box::new(Keys(accepted.context)),
        token: accepted.token,
        user: KerberosUser {
            principal: accepted.principal,
            ids,
        },
        lifetime_seconds: accepted.lifetime_seconds,
    })
}

/// Finds the numbers of a user in the texts of `/etc/passwd` and `/etc/group`.
fn ids_of_user(users: &str, groups: &str, name: &str) -> Option<UnixIds> {
    let (uid, gid) = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [user, _, uid, gid, ..] = fields[..] else {
            return None;
        };
        (user == name).then_some((uid.parse().ok()?, gid.parse().ok()?))
    })?;
    let groups = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, number, members] = fields[..] else {
            return None;
        };
        let is_member = members.split(',').any(|member| member.trim() == name);
        number.parse().ok().filter(|_| is_member)
    });
    Some(UnixIds {
        uid,
        gid,
        groups: groups.collect(),
    })
}

/// The keys of a context. What goes wrong with a message is the client's matter.
struct Keys(gss::SecurityContext);

impl SecurityContext for Keys {
    fn mic(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.mic(message).ok()
    }

    fn verify_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        self.0.verify_mic(message, mic).is_ok()
    }

    fn wrap(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.wrap(message).ok()
    }

    fn unwrap(&self, wrapped: &[u8]) -> Option<Vec<u8>> {
        self.0.unwrap(wrapped).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_groups_that_list_them() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100::/home/alice:/bin/sh\nbroken:x:a:b\n";
        let groups =
            "users:x:100:\nstaff:x:50:bob,alice\nwheel:x:10:alice\nother:x:11:alicent\nbad:x\n";
        let found =
            |name| ids_of_user(users, groups, name).map(|ids| (ids.uid, ids.gid, ids.groups));
        assert_eq!(found("alice"), Some((1000, 100, vec![50, 10])));
        assert_eq!(found("root"), Some((0, 0, vec![])));
        assert_eq!(found("broken"), None);
        assert_eq!(found("nobody"), None);
    }
}
