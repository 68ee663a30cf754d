//! Plain HTTP, at the port of HTTPS and where an authority comes to: answered with the document of a challenge, else with a redirection.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::acme::challenges::Challenges;

/// Bytes of a request's head that are looked at.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Whether a connection that begins with this byte speaks HTTP in the clear rather than TLS, whose first record is a handshake (RFC 8446,
/// 5.1: type 22).
pub(super) fn is_plain(first: u8) -> bool {
    first.is_ascii_uppercase()
}

/// Reads a request; answers it with the document of a challenge, or sends the client to HTTPS: at `port`, where it is another one than the
/// client has come to.
pub(crate) async fn answer(
    mut stream: TcpStream,
    challenges: &Challenges,
    port: Option<u16>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await? {
            0 => break,
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let document = target(&head).and_then(|target| challenges.document(target));
    let answer = match (document, location(&head, port)) {
        // RFC 8555, 8.3
        (Some(document), _) => format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{document}",
            document.len()
        ),
        (None, Some(location)) => format!(
            "HTTP/1.1 308 Permanent Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ),
        (None, None) => {
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()
        }
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// What a request is for.
fn target(head: &str) -> Option<&str> {
    head.split("\r\n").next()?.split(' ').nth(1)
}

/// Where a request should have gone; none of one that does not say it in characters of an address.
fn location(head: &str, port: Option<u16>) -> Option<String> {
    let target = target(head)?;
    let mut lines = head.split("\r\n").skip(1);
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    })?;
    let in_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let in_target = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\".contains(&byte);
    let sound = !host.is_empty()
        && host.bytes().all(in_host)
        && target.starts_with('/')
        && !target.starts_with("//")
        && target.bytes().all(in_target);
    sound.then(|| format!("https://{}{target}", at_port(host, port)))
}

/// A host with another port than it came with.
fn at_port(host: &str, port: Option<u16>) -> String {
    let Some(port) = port else {
        return host.to_owned();
    };
    // The address of an IPv6 host stands in brackets.
    let end = host.rfind(']').map_or(0, |at| at + 1);
    let end = host[end..].find(':').map_or(host.len(), |at| end + at);
    match port {
        443 => host[..end].to_owned(),
        port => format!("{}:{port}", &host[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_to_the_same_place_over_tls() {
        for (head, to) in [
            (
                "GET /pools/tank?x=1 HTTP/1.1\r\nUser-Agent: a\r\nHost: box:8443\r\n\r\n",
                Some("https://box:8443/pools/tank?x=1"),
            ),
            (
                "GET / HTTP/1.1\r\nhost: [::1]:8443\r\n\r\n",
                Some("https://[::1]:8443/"),
            ),
            ("GET / HTTP/1.0\r\n\r\n", None),
            ("GET //evil.example/ HTTP/1.1\r\nHost: box\r\n\r\n", None),
            ("GET http://x/ HTTP/1.1\r\nHost: box\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost: box/@evil.example\r\n\r\n", None),
            ("nonsense", None),
        ] {
            assert_eq!(location(head, None).as_deref(), to, "{head}");
        }
        assert!(is_plain(b'G') && !is_plain(22));
        for (host, port, to) in [
            ("box", 8443, "box:8443"),
            ("box:80", 8443, "box:8443"),
            ("box:80", 443, "box"),
            ("[::1]", 8443, "[::1]:8443"),
            ("[::1]:80", 443, "[::1]"),
        ] {
            assert_eq!(at_port(host, Some(port)), to);
        }
    }
}
