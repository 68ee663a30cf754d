//! Tells people of alerts: by mail, web services, syslog and SNMP.
//!
//! Guarantees: each channel has a bounded queue of its own; what a channel does not take is tried again, later each time, and what is
//! beyond the bound is counted as dropped. A channel that hangs holds up no other, and no check. TLS is checked against the machine's
//! certificates, or those of `ca_file`.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use data_encoding::BASE64;
use jiff::Timestamp;
use manage::alerts::channel::Channel;
use manage::alerts::snmp::{self, TrapContext};
use manage::alerts::{Alerts, ChannelView, Message, forms};
use manage::config::{Alerts as Settings, Mail, MailTls, Snmp, Webhook};
use manage::database::seconds_since_epoch;
use manage::report::{self, Report};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::web_client::{Stream, Trust, Url, connect, secured};

/// Messages of a channel that wait to be taken.
const WAITING_MAX: usize = 100;
/// How long an attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after the first failure, and the longest.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(600);
/// Bytes of an answer that are looked at.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

async fn send(channel: &Channel, message: &Message, host: &str) -> anyhow::Result<()> {
    match channel {
        Channel::Mail(mail) => send_mail(mail, message, host).await,
        Channel::Webhook(hook) => send_webhook(hook, message, host).await,
        Channel::Syslog(syslog) => {
            let line = forms::syslog(message, host);
            send_packet(&syslog.server, line.as_bytes()).await
        }
        Channel::Snmp(snmp) => send_trap(snmp, message, host).await,
    }
}

async fn send_packet(server: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let mut servers = tokio::net::lookup_host(server).await?;
    let server = servers.next().context("the name has no address")?;
    let socket = UdpSocket::bind(match server.is_ipv6() {
        true => "[::]:0",
        false => "0.0.0.0:0",
    });
    let socket = socket.await.context("opening a socket")?;
    socket.send_to(bytes, server).await?;
    Ok(())
}

/// When the first trap was sent, and how many there were.
static TRAPS: LazyLock<(Instant, AtomicU32)> =
    LazyLock::new(|| (Instant::now(), AtomicU32::new(1)));

async fn send_trap(settings: &Snmp, message: &Message, host: &str) -> anyhow::Result<()> {
    let (began, count) = &*TRAPS;
    let community = match settings.community.as_str() {
        "" => "public",
        community => community,
    };
    let up_ticks = began.elapsed().as_millis() / 10;
    let context = TrapContext {
        community,
        host,
        // RFC 3418: the count begins anew after 497 days.
        up_ticks: u32::try_from(up_ticks & u128::from(u32::MAX)).expect("32 bits"),
        number: count.fetch_add(1, Ordering::Relaxed),
        at: Timestamp::now(),
    };
    send_packet(&settings.server, &snmp::trap(message, &context)).await
}

/// Serves the channels that are set, as they are changed, until the task is ended.
pub(crate) async fn serve(
    mut settings: watch::Receiver<Settings>,
    alerts: Arc<Alerts>,
    host: String,
) {
    // Ended with this.
    let mut tasks = JoinSet::new();
    let mut serving: Vec<(Channel, AbortHandle)> = Vec::new();
    loop {
        let wanted = Channel::all(&settings.borrow_and_update());
        serving.retain(|(channel, task)| {
            let stays = wanted.contains(channel);
            if !stays {
                task.abort();
                alerts.forget_channel(&channel.name());
            }
            stays
        });
        for channel in wanted {
            if serving.iter().all(|(known, _)| *known != channel) {
                let task = tasks.spawn(follow(channel.clone(), alerts.clone(), host.clone()));
                serving.push((channel, task));
            }
        }
        if settings.changed().await.is_err() {
            return;
        }
    }
}

/// Takes the messages for a channel, and tries until it takes them.
async fn follow(channel: Channel, alerts: Arc<Alerts>, host: String) {
    let mut messages = alerts.messages();
    let mut waiting: VecDeque<Message> = VecDeque::new();
    let mut view = ChannelView {
        name: channel.name(),
        ..ChannelView::default()
    };
    alerts.note_channel(view.clone());
    let mut pause = PAUSE_FIRST;
    let mut next = Instant::now();
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Ok(message) if channel.takes(&message) => {
                    if waiting.len() >= WAITING_MAX {
                        waiting.pop_front();
                        view.dropped += 1;
                    }
                    waiting.push_back(message);
                }
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => view.dropped += missed,
                Err(RecvError::Closed) => return,
            },
            () = sleep_until(next), if !waiting.is_empty() => {
                let sent = match waiting.front() {
                    Some(message) => timeout(ATTEMPT_TIMEOUT, send(&channel, message, &host)).await,
                    None => continue,
                };
                match sent.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time"))) {
                    Ok(()) => {
                        waiting.pop_front();
                        view.sent += 1;
                        view.last_sent = Some(seconds_since_epoch());
                        view.error = None;
                        pause = PAUSE_FIRST;
                        next = Instant::now();
                    }
                    Err(error) => {
                        view.error = Some(format!("{error:#}"));
                        next = Instant::now() + pause;
                        pause = (pause * 2).min(PAUSE_LONGEST);
                    }
                }
            }
        }
        view.waiting = waiting.len() as u64;
        alerts.note_channel(view.clone());
    }
}

/// Splits `HOST:PORT`.
fn host_of(server: &str) -> &str {
    server.rsplit_once(':').map_or(server, |(host, _)| host)
}

fn secret(path: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

async fn send_webhook(hook: &Webhook, message: &Message, host: &str) -> anyhow::Result<()> {
    let url = Url::parse(&hook.url)?;
    let request = forms::webhook(hook.form, message, host);
    let mut head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: sanbox\r\nconnection: close\r\n",
        url.path, url.authority
    );
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(token) = secret(hook.token_file.as_deref())? {
        ensure!(
            token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the token holds spaces or other letters than ASCII"
        );
        head.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", request.body.len()));
    let mut stream = connect(&url, &Trust::of_file(hook.ca_file.as_deref())).await?;
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(request.body.as_bytes()).await?;
    stream.flush().await?;
    let mut line = String::new();
    BufReader::new(stream)
        .take(ANSWER_BYTES_MAX)
        .read_line(&mut line)
        .await?;
    let status = line.split(' ').nth(1).unwrap_or_default();
    ensure!(
        status.len() == 3 && status.starts_with('2'),
        "it answered '{}'",
        line.trim()
    );
    Ok(())
}

/// A conversation with a mail server (RFC 5321).
struct Smtp(BufReader<Box<dyn Stream>>);

impl Smtp {
    /// Says a line, and returns the answer to it, which has this code.
    async fn say(&mut self, line: &str, shown: &str, code: &str) -> anyhow::Result<String> {
        if !line.is_empty() {
            self.0.write_all(format!("{line}\r\n").as_bytes()).await?;
            self.0.flush().await?;
        }
        let mut answer = String::new();
        loop {
            let mut part = String::new();
            let read = (&mut self.0)
                .take(ANSWER_BYTES_MAX)
                .read_line(&mut part)
                .await?;
            ensure!(read > 0, "the server closed the connection after {shown}");
            answer.push_str(&part);
            // RFC 5321, 4.2.1: lines before the last have '-' behind the code.
            if part.as_bytes().get(3) != Some(&b'-') {
                break;
            }
            ensure!(
                (answer.len() as u64) < ANSWER_BYTES_MAX,
                "the server does not end its answer"
            );
        }
        let last = answer.lines().last().unwrap_or_default();
        ensure!(
            last.starts_with(code),
            "the server answered '{last}' to {shown}"
        );
        Ok(answer)
    }
}

async fn send_mail(mail: &Mail, message: &Message, host: &str) -> anyhow::Result<()> {
    let own = if host.is_empty() { "localhost" } else { host };
    let (title, text) = (forms::title(message, own), forms::text(message, own));
    deliver(mail, own, &letter(mail, &title, &plain_part(&text))).await
}

/// Sends a report to those whom the mail channels write to, or to those whom the settings name. Returns who has it, and why others do not.
///
/// # Errors
/// There is no mail channel.
pub(crate) async fn send_report(
    settings: &Settings,
    report: &Report,
) -> anyhow::Result<(Vec<String>, Option<anyhow::Error>)> {
    let mut mails = settings.mail.clone();
    ensure!(
        !mails.is_empty(),
        "no mail is set up: 'sanbox alert channel add mail' does"
    );
    if !settings.report.to.is_empty() {
        mails.truncate(1);
        mails[0].to.clone_from(&settings.report.to);
    }
    let own = match report.host.as_str() {
        "" => "localhost",
        host => host,
    };
    let body = report_parts(report);
    let (mut sent, mut failed) = (Vec::new(), None);
    for mail in mails {
        let letter = letter(&mail, &report::title(report), &body);
        let delivered = timeout(ATTEMPT_TIMEOUT, deliver(&mail, own, &letter)).await;
        match delivered.with_context(|| format!("{}: no answer in time", mail.server)) {
            Ok(Ok(())) => sent.extend(mail.to),
            Ok(Err(error)) | Err(error) => failed = Some(error),
        }
    }
    Ok((sent, failed))
}

async fn deliver(mail: &Mail, own: &str, letter: &str) -> anyhow::Result<()> {
    for address in mail.to.iter().chain([&mail.from]) {
        let plain = address
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"<>".contains(&byte));
        ensure!(plain && address.contains('@'), "'{address}' is no address");
    }
    ensure!(!mail.to.is_empty(), "there is nobody to write to");
    let trust = Trust::of_file(mail.ca_file.as_deref());
    let stream = TcpStream::connect(&mail.server).await;
    let stream = stream.with_context(|| format!("connecting to {}", mail.server))?;
    let server = host_of(&mail.server);
    let hello = format!("EHLO {own}");
    let stream: Box<dyn Stream> = match mail.tls {
        MailTls::Tls => secured(stream, server, &trust).await?,
        MailTls::Starttls | MailTls::None => Box::new(stream),
    };
    let mut smtp = Smtp(BufReader::new(stream));
    smtp.say("", "the connection", "220").await?;
    smtp.say(&hello, "EHLO", "250").await?;
    if mail.tls == MailTls::Starttls {
        smtp.say("STARTTLS", "STARTTLS", "220").await?;
        // What came with the answer was not encrypted: it must not be taken for what the server says later.
        ensure!(
            smtp.0.buffer().is_empty(),
            "the server said more before encryption began"
        );
        let stream = secured(smtp.0.into_inner(), server, &trust).await?;
        smtp = Smtp(BufReader::new(stream));
        smtp.say(&hello, "EHLO", "250").await?;
    }
    if let Some(password) = secret(mail.password_file.as_deref())? {
        ensure!(
            mail.tls != MailTls::None,
            "a password is sent over TLS alone"
        );
        // RFC 4616, 2.
        let plain = BASE64.encode(format!("\0{}\0{password}", mail.user).as_bytes());
        smtp.say(&format!("AUTH PLAIN {plain}"), "AUTH", "235")
            .await?;
    }
    smtp.say(&format!("MAIL FROM:<{}>", mail.from), "MAIL", "250")
        .await?;
    for address in &mail.to {
        smtp.say(&format!("RCPT TO:<{address}>"), "RCPT", "25")
            .await?;
    }
    smtp.say("DATA", "DATA", "354").await?;
    smtp.say(&format!("{letter}\r\n."), "the message", "250")
        .await?;
    let _ = smtp.say("QUIT", "QUIT", "221").await;
    Ok(())
}

/// A message with its headers (RFC 5322); `body` begins with those of its content.
fn letter(mail: &Mail, subject: &str, body: &str) -> String {
    let plain = |letter: char| match letter {
        ' '..='~' => letter,
        _ => '?',
    };
    let subject: String = subject.chars().map(plain).take(200).collect();
    let date = jiff::Zoned::now()
        .strftime("%a, %d %b %Y %H:%M:%S %z")
        .to_string();
    format!(
        "From: sanbox <{}>\r\nTo: {}\r\nSubject: {subject}\r\nDate: {date}\r\nMIME-Version: 1.0\r\n\
         Auto-Submitted: auto-generated\r\n{body}",
        mail.from,
        mail.to.join(", "),
    )
}

/// Content of a type in base 64: no line of it can be taken for anything else.
fn part(kind: &str, more: &str, content: &[u8]) -> String {
    let body = BASE64.encode(content);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(76)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n{more}\r\n{}",
        lines.join("\r\n")
    )
}

fn plain_part(text: &str) -> String {
    part("text/plain; charset=utf-8", "", text.as_bytes())
}

/// The words of a report and its picture (RFC 2046, 5.1): no line of base 64 begins with the boundary.
fn report_parts(report: &Report) -> String {
    let picture = part(
        "image/svg+xml; name=\"report.svg\"",
        "Content-Disposition: inline; filename=\"report.svg\"\r\n",
        report::picture(report).as_bytes(),
    );
    format!(
        "Content-Type: multipart/mixed; boundary=\"--report\"\r\n\r\n----report\r\n{}\r\n----report\r\n{picture}\r\n----report--\r\n",
        plain_part(&report::text(report)),
    )
}

#[cfg(test)]
mod tests {
    use manage::alerts::forms::WebhookForm;
    use manage::config::Syslog;
    use tokio::net::TcpListener;

    use super::*;

    fn mail(server: String) -> Mail {
        Mail {
            server,
            tls: MailTls::None,
            from: "box@example.com".to_owned(),
            to: vec!["ann@example.com".to_owned(), "bob@example.com".to_owned()],
            ..Mail::default()
        }
    }

    /// A mail server that refuses the first message, and a web service that does: both get it in the end, whole.
    #[tokio::test]
    async fn what_is_refused_is_sent_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = listener.local_addr().expect("an address").to_string();
        let receiving = tokio::spawn(async move {
            let mut said = Vec::new();
            for answer in ["451 later", "250 taken"] {
                let (stream, _) = listener.accept().await.expect("a client");
                let mut stream = BufReader::new(stream);
                stream.write_all(b"220 ready\r\n").await.expect("sent");
                let mut in_data = false;
                loop {
                    let mut line = String::new();
                    if stream.read_line(&mut line).await.expect("read") == 0 {
                        break;
                    }
                    let line = line.trim_end().to_owned();
                    let reply = match (in_data, line.as_str()) {
                        (true, ".") => {
                            in_data = false;
                            answer
                        }
                        (true, _) => "",
                        (_, "DATA") => {
                            in_data = true;
                            "354 go on"
                        }
                        (_, "QUIT") => "221 bye",
                        (_, line) if line.starts_with("EHLO") => "250-box\r\n250 8BITMIME",
                        _ => "250 fine",
                    };
                    said.push(line);
                    if !reply.is_empty() {
                        stream
                            .write_all(format!("{reply}\r\n").as_bytes())
                            .await
                            .expect("sent");
                    }
                }
            }
            said
        });
        let channel = Channel::Mail(mail(server));
        let message = Message::Test(None);
        let refused = send(&channel, &message, "box").await.expect_err("refused");
        assert!(refused.to_string().contains("451 later"), "{refused:#}");
        send(&channel, &message, "box").await.expect("sent");
        let said = receiving.await.expect("received");
        for line in [
            "RCPT TO:<ann@example.com>",
            "RCPT TO:<bob@example.com>",
            "Subject: [test] box: this is how alerts arrive",
        ] {
            assert_eq!(
                said.iter().filter(|known| *known == line).count(),
                2,
                "{line}: {said:?}"
            );
        }
    }

    #[tokio::test]
    async fn web_services_and_syslog_receive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let receiving = tokio::spawn(async move {
            let mut requests = Vec::new();
            for answer in ["500 Broken", "204 No Content"] {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let mut request = vec![0; 8192];
                let read = stream.read(&mut request).await.expect("read");
                requests.push(String::from_utf8_lossy(&request[..read]).into_owned());
                let answer = format!("HTTP/1.1 {answer}\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.expect("sent");
            }
            requests
        });
        let channel = Channel::Webhook(Webhook {
            url: format!("http://{at}/hook?secret=1"),
            form: WebhookForm::Ntfy,
            ..Webhook::default()
        });
        assert_eq!(channel.name(), format!("ntfy {at}"));
        let message = Message::Test(None);
        send(&channel, &message, "box").await.expect_err("refused");
        send(&channel, &message, "box").await.expect("sent");
        let requests = receiving.await.expect("received");
        assert!(
            requests[1].starts_with("POST /hook?secret=1 HTTP/1.1\r\n"),
            "{}",
            requests[1]
        );
        assert!(requests[1].contains("title: [test] box"), "{}", requests[1]);
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let syslog = Channel::Syslog(Syslog {
            server: socket.local_addr().expect("an address").to_string(),
            severity: "critical".to_owned(),
        });
        send(&syslog, &message, "box").await.expect("sent");
        let mut line = [0; 512];
        let read = socket.recv(&mut line).await.expect("a line");
        assert!(line[..read].starts_with(b"<29>1 - box sanbox"));
    }

    #[tokio::test]
    async fn a_password_is_not_sent_in_the_clear_and_a_stranger_is_not_trusted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = listener.local_addr().expect("an address").to_string();
        let serving = tokio::spawn(async move {
            let mut said = String::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let _ = stream.write_all(b"220 a\r\n250 b\r\n250 c\r\n").await;
                let _ = stream.read_to_string(&mut said).await;
            }
            said
        });
        let own = std::env::current_exe().expect("a path");
        let mut with_password = mail(server.clone());
        with_password.password_file = Some(own.with_file_name("no-such-file"));
        let error = send_mail(&with_password, &Message::Test(None), "box").await;
        error.expect_err("no password");
        let mut upgraded = mail(server);
        upgraded.tls = MailTls::Starttls;
        let error = send_mail(&upgraded, &Message::Test(None), "box").await;
        error.expect_err("not encrypted");
        let said = serving.await.expect("served");
        assert!(!said.contains("AUTH") && !said.contains("MAIL"), "{said}");
    }
}
