//! `sanbox certificate`: the certificate of the console, shown, and had from an authority that speaks ACME.

use manage::acme::{AcmeFailure, AcmeProgress, Issued};
use manage::certificate;
use manage::config::{Acme, AcmeChallenge, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::Arguments;
use crate::acme::{Surroundings, When};
use crate::cli::format::date;
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["show"] => {
            show(session);
            Ok(())
        }
        ["renew"] => renew(session).await,
        ["acme", "off"] => turn_off(session),
        ["acme", ref names @ ..] if !names.is_empty() => set(session, args, names).await,
        _ => Err(session.misuse("nothing, show, acme NAME..., acme off or renew")),
    }
}

fn show(session: &Session) {
    let state = session.appliance.state().path();
    let line = |label: &str, value: &str| session.out.line(format!("{label:<14} {value}"));
    let pem = std::fs::read(state.join("console-cert.pem")).unwrap_or_default();
    match CertificateDer::from_pem_slice(&pem) {
        Ok(der) => {
            line("fingerprint", &certificate::fingerprint(&der));
            if let Some(end) = certificate::end_of_validity(&der) {
                line("valid until", &date(end));
            }
        }
        Err(_) => line("fingerprint", "none: the console was never served"),
    }
    let acme = session.appliance.acme();
    let settings = acme.settings().borrow().clone();
    if !settings.is_on() {
        return line("acme", "off");
    }
    line("acme", &settings.names.join(", "));
    line("authority", &settings.directory);
    line("proof", settings.challenge.as_str());
    let progress = AcmeProgress::read(state);
    let in_use = crate::acme::fingerprint_in(state);
    let next = match progress.next_attempt(&settings, in_use.as_deref()) {
        _ if acme.is_trying() => "under way".to_owned(),
        0 => "at once, by the daemon".to_owned(),
        at => date(at),
    };
    line("next order", &next);
    if let Some(failure) = &progress.failure {
        line("failed", &failure.fact);
        line("next step", &failure.next_step);
    }
}

async fn set(session: &Session, args: &Arguments, names: &[&str]) -> Outcome {
    let mut acme = session.appliance.acme().settings().borrow().clone();
    acme.names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    if let Some(contact) = args.long("contact") {
        contact.clone_into(&mut acme.contact);
    }
    if let Some(directory) = args.long("directory") {
        if directory != acme.directory {
            // The terms of another authority are other ones, and so is what is trusted of it.
            acme.terms_agreed = false;
            acme.ca_file = None;
        }
        directory.clone_into(&mut acme.directory);
    }
    if let Some(name) = args.long("challenge") {
        acme.challenge = AcmeChallenge::from_name(name).ok_or_else(|| {
            session.misuse(format!("'{name}' is neither http-01 nor tls-alpn-01"))
        })?;
    }
    if let Some(port) = args.long("http-port") {
        let port = port.parse().ok().filter(|port| *port != 0);
        acme.http_port = port.ok_or_else(|| session.misuse("--http-port: 1 to 65535"))?;
    }
    if let Some(file) = args.long("ca-file") {
        acme.ca_file = Some(session.path(file));
    }
    acme.terms_agreed |= args.has_long("agree");
    if !acme.terms_agreed {
        return Err(session.fail(format!(
            "the authority at {} gives certificates to those who agree to its terms alone: read them, and add --agree",
            acme.directory
        )));
    }
    let acme = keep(session, &acme)?;
    let service = session.appliance.acme();
    let issued = service.attempt_with(acme, &surroundings(session)).await;
    tell(session, issued)
}

fn turn_off(session: &Session) -> Outcome {
    let off = keep(session, &Acme::default())?;
    session.appliance.acme().settings().send_replace(off);
    Ok(())
}

async fn renew(session: &Session) -> Outcome {
    let acme = session.appliance.acme();
    if !acme.settings().borrow().is_on() {
        return Err(session.fail("no authority is set: 'sanbox certificate acme NAME' does"));
    }
    let issued = acme.attempt(&surroundings(session), When::Now).await;
    tell(session, issued)
}

/// Puts the settings into the configuration; returns them as they are there.
fn keep(session: &Session, acme: &Acme) -> Result<Acme, Exit> {
    let kept = super::alert_channel::changed_text(session, |text| acme.put_into(text));
    let config = kept.and_then(|text| Config::parse(&text));
    let config = config.map_err(|why| session.fail(format!("cannot set up ACME: {why}")))?;
    Ok(config.acme)
}

fn surroundings(session: &Session) -> Surroundings<'_> {
    Surroundings {
        state: session.appliance.state(),
        config: session.appliance.config(),
    }
}

/// Says what came of an order.
fn tell(session: &Session, issued: Result<Option<Issued>, AcmeFailure>) -> Outcome {
    // Alerts follow at once.
    if let Some(api) = session.appliance.api() {
        let _ = api.alerts.want_check("certificate");
    }
    match issued {
        Err(failure) => {
            let (fact, next) = (failure.fact, failure.next_step);
            return Err(session.fail(format!(
                "no certificate was issued, the one before stays: {fact} {next}"
            )));
        }
        Ok(Some(issued)) => session.out.line(format!(
            "a certificate for {} was issued, valid until {}",
            issued.names.join(", "),
            date(issued.ends)
        )),
        Ok(None) => show(session),
    }
    Ok(())
}
