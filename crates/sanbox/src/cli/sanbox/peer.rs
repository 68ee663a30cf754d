//! `sanbox peer`: other appliances that this one replicates with.

use manage::peer::pairing::{Code, Grant, VALID_SECONDS};
use manage::peer::{Peer, PeerError, check_address, check_name, is_name};
use manage::replication::Location;

use super::{Arguments, print_table};
use crate::cli::{Exit, Outcome, Session, user_name};
use crate::serve::management;
use crate::serve::peers::invite as invite_peer;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        ["invite"] => invite(session, args, "").await,
        ["invite", name] => invite(session, args, name).await,
        ["add", name, address, code] => add(session, name, address, code).await,
        ["list"] => list(session, args),
        ["show", name] => show(session, name),
        ["rename", name, to] => rename(session, name, to).await,
        ["remove", name] => remove(session, name).await,
        _ => Err(session.usage_only()),
    }
}

fn refused(session: &Session, error: &PeerError) -> Exit {
    session.fail(error.to_string())
}

/// Writes what was done into the log of accounts.
async fn note(session: &Session, event: String) {
    // The peer is changed already; a log that cannot be opened undoes nothing.
    if let Ok(api) = management::open(&session.appliance).await {
        let uid = session.caller.uid;
        let user = user_name(u64::from(uid)).unwrap_or_else(|| uid.to_string());
        api.audit.note(&user, "shell", event);
        // A process that ends now would leave it unwritten.
        let _ = api.accounts.database().call(|_| Ok(())).await;
    }
}

async fn invite(session: &Session, args: &Arguments, name: &str) -> Outcome {
    let appliance = &session.appliance;
    let grant = Grant {
        name: name.to_owned(),
        datasets: args
            .longs("datasets")
            .into_iter()
            .map(str::to_owned)
            .collect(),
        push: args.has_long("push"),
        pull: args.has_long("pull"),
        failover: args.has_long("failover"),
    };
    if grant.failover && !grant.push {
        return Err(session.misuse(
            "--failover goes with --push: what the peer did not send it cannot put in use",
        ));
    }
    if grant.datasets.is_empty() || !grant.push && !grant.pull {
        return Err(session.misuse(
            "say what the peer reaches here, and what for: --datasets DATASET, and --push (it sends there), --pull (it takes from there) or both",
        ));
    }
    if !name.is_empty() {
        check_name(name).map_err(|error| refused(session, &error))?;
    }
    let event = format!("invited a peer to {}", grant.datasets.join(", "));
    let invited = invite_peer(appliance, grant).await;
    let invited = invited.map_err(|why| session.fail(why))?;
    note(session, event).await;
    session.out.line(format!(
        "On the other appliance, within {} minutes:",
        VALID_SECONDS / 60
    ));
    session.out.line(String::new());
    session.out.line(format!(
        "    sanbox peer add NAME {} {}",
        invited.address, invited.code
    ));
    session.out.line(String::new());
    session
        .out
        .line(format!("This one's certificate: {}", invited.certificate));
    Ok(())
}

async fn add(session: &Session, name: &str, address: &str, code: &str) -> Outcome {
    let appliance = &session.appliance;
    let failed = |error: PeerError| session.fail(format!("cannot add '{name}': {error}"));
    check_name(name).map_err(failed)?;
    check_address(address).map_err(failed)?;
    let Some(code) = Code::parse(code) else {
        return Err(session.fail(format!(
            "cannot add '{name}': that is no code of 'sanbox peer invite' (24 letters and digits)"
        )));
    };
    let book = appliance.peers().book();
    let own_name = appliance.host_name().filter(|host| is_name(host));
    let own_name = own_name.unwrap_or_else(|| "peer".to_owned());
    let paired = appliance.peers().pair(address, &code, &own_name).await;
    let (paired, certificate) =
        paired.map_err(|why| session.fail(format!("cannot add '{name}': {why}")))?;
    let peer = Peer {
        name: name.to_owned(),
        certificate,
        address: address.to_owned(),
        datasets: Vec::new(),
        push: false,
        pull: false,
        failover: false,
    };
    book.change(|peers| peers.reach(peer)).map_err(failed)?;
    appliance.peers().links().forget(name);
    note(session, format!("added peer '{name}' at {address}")).await;
    session.out.line(format!(
        "'{name}' knows this appliance as '{}', which {}",
        paired.name,
        may(&paired.datasets, paired.push, paired.pull, paired.failover)
    ));
    Ok(())
}

/// What a peer may do, in words that follow its name.
fn may(datasets: &[String], push: bool, pull: bool, failover: bool) -> String {
    let more = match failover {
        true => ", and puts in use what it sent there",
        false => "",
    };
    let what = match (push, pull) {
        (true, true) => "sends to and takes from",
        (true, false) => "sends to",
        (false, true) => "takes from",
        (false, false) => return "does nothing here".to_owned(),
    };
    format!("{what} {}{more}", datasets.join(", "))
}

fn list(session: &Session, args: &Arguments) -> Outcome {
    let peers = session.appliance.peers().book().peers();
    let peers = peers.map_err(|error| refused(session, &error))?;
    let row = |peer: &Peer| {
        let or_dash = |text: String| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text
            }
        };
        let rights = [
            (peer.push, "push"),
            (peer.pull, "pull"),
            (peer.failover, "failover"),
        ];
        let rights = rights.into_iter().filter(|(has, _)| *has);
        let rights: Vec<&str> = rights.map(|(_, word)| word).collect();
        vec![
            peer.name.clone(),
            or_dash(peer.address.clone()),
            or_dash(rights.join(",")),
            or_dash(peer.datasets.join(",")),
        ]
    };
    let rows: Vec<_> = peers.peer.iter().map(row).collect();
    let titles = ["NAME", "ADDRESS", "MAY", "DATASETS"];
    print_table(session, args, &titles, &rows);
    Ok(())
}

/// The jobs that name a peer.
fn jobs_of(session: &Session, peer: &str) -> Result<Vec<String>, Exit> {
    let jobs = session.appliance.replications().jobs();
    let jobs = jobs.map_err(|error| session.fail(error.to_string()))?;
    let names = |job: &&manage::replication::Job| {
        let is_of =
            |location| matches!(location, Ok(Location::Peer { peer: name, .. }) if name == peer);
        is_of(job.source()) || is_of(job.target())
    };
    Ok(jobs
        .replication
        .iter()
        .filter(names)
        .map(|job| job.name.clone())
        .collect())
}

fn show(session: &Session, name: &str) -> Outcome {
    let peers = session.appliance.peers().book().peers();
    let peers = peers.map_err(|error| refused(session, &error))?;
    let peer = peers
        .named(name)
        .map_err(|error| refused(session, &error))?;
    let out = &session.out;
    out.line(format!("name         {}", peer.name));
    let address = match peer.address.as_str() {
        "" => "none: it comes here",
        address => address,
    };
    out.line(format!("address      {address}"));
    out.line(format!("certificate  {}", peer.certificate));
    out.line(format!(
        "here         {}",
        may(&peer.datasets, peer.push, peer.pull, peer.failover)
    ));
    let jobs = jobs_of(session, name)?;
    if !jobs.is_empty() {
        out.line(format!("jobs         {}", jobs.join(", ")));
    }
    Ok(())
}

fn unused(session: &Session, name: &str) -> Outcome {
    let jobs = jobs_of(session, name)?;
    match jobs.first() {
        Some(job) => Err(session.fail(format!(
            "peer '{name}' is in use by the job '{job}' ('sanbox replication remove {job}')"
        ))),
        None => Ok(()),
    }
}

async fn rename(session: &Session, name: &str, to: &str) -> Outcome {
    unused(session, name)?;
    let peers = session.appliance.peers();
    let renamed = peers.book().change(|peers| peers.rename(name, to));
    renamed.map_err(|error| refused(session, &error))?;
    peers.links().forget(name);
    note(session, format!("renamed peer '{name}' to '{to}'")).await;
    Ok(())
}

async fn remove(session: &Session, name: &str) -> Outcome {
    unused(session, name)?;
    let peers = session.appliance.peers();
    let removed = peers.book().change(|peers| peers.remove(name));
    removed.map_err(|error| refused(session, &error))?;
    peers.links().forget(name);
    note(session, format!("removed peer '{name}'")).await;
    Ok(())
}
