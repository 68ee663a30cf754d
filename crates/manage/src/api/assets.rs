//! The files of the console in the browser, as `web/` builds them: embedded in the program, the same for everybody.
//!
//! A path that is no file and no call is a page of the console: the browser gets `index.html`, whose script shows the page.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::Problem;

/// A file of the console.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// The same for browsers that take gzip: a third of it.
    small: Bytes,
    /// Changes with the content (RFC 9110, 8.8.3); weak, since it is that of both forms.
    etag: String,
}

impl Asset {
    fn new(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let hash = Sha256::digest(bytes);
        let digits: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            path,
            content_type,
            bytes,
            small: gzip(bytes),
            etag: format!("W/\"{digits}\""),
        }
    }
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    // Nothing of it can fail in memory.
    written.map(Bytes::from).unwrap_or_default()
}

/// Whether a client takes gzip (RFC 9110, 12.5.3).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = |weight: &str| matches!(weight, "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        is_gzip && !parts.any(is_refused)
    })
}

macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!("../../../../web/dist/", $name))
    };
}

/// The first is the page itself.
static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    [
        Asset::new("/", "text/html; charset=utf-8", built!("index.html")),
        Asset::new(
            "/app.js",
            "text/javascript; charset=utf-8",
            built!("app.js"),
        ),
        Asset::new("/app.css", "text/css; charset=utf-8", built!("app.css")),
        Asset::new("/favicon.svg", "image/svg+xml", built!("favicon.svg")),
    ]
});

fn find(path: &str) -> Option<&'static Asset> {
    let known = ASSETS.iter().find(|asset| asset.path == path);
    // Pages have no end like that of a file; names of datasets, which may, come behind.
    let first = path.split('/').nth(1).unwrap_or_default();
    let is_page = first != "api" && !first.contains('.');
    known.or_else(|| ASSETS.first().filter(|_| is_page))
}

/// Answers what no call answers.
pub(super) async fn serve(
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Some(asset) = find(uri.path()) else {
        return Err(Problem::not_found("there is nothing here"));
    };
    if !matches!(method, Method::GET | Method::HEAD) {
        let detail = "not with this method";
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    let answered = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::ETAG, asset.etag.as_str()),
        // Kept, and asked for each time: an update of the program is seen at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
    ];
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let is_known = known.filter_map(|value| value.to_str().ok()).any(|value| {
        let mut tags = value.split(',');
        let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        tags.any(|tag| bare(tag) == bare(&asset.etag))
    });
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, answered).into_response());
    }
    if takes_gzip(&headers) && !asset.small.is_empty() {
        let encoding = [(header::CONTENT_ENCODING, "gzip")];
        return Ok((answered, encoding, asset.small.clone()).into_response());
    }
    Ok((answered, Bytes::from_static(asset.bytes)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_one_file_and_calls_are_none() {
        let path = |path| find(path).map(|asset| asset.path);
        for page in ["/", "/setup", "/datasets/tank%2Fa.b", "/pools/tank"] {
            assert_eq!(path(page), Some("/"), "{page}");
        }
        assert_eq!(path("/app.js"), Some("/app.js"));
        for nothing in ["/api/v1/nothing", "/api", "/robots.txt", "/../etc/passwd"] {
            assert_eq!(path(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let takes = |value: &str| {
            let mut headers = HeaderMap::new();
            let value = value.parse().expect("a header");
            headers.insert(header::ACCEPT_ENCODING, value);
            takes_gzip(&headers)
        };
        assert!(takes("gzip, deflate, br") && takes("br;q=1.0, GZIP;q=0.8"));
        assert!(!takes("identity") && !takes("gzip;q=0") && !takes_gzip(&HeaderMap::new()));
        let script = find("/app.js").expect("the script");
        let mut open = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&script.small[..]);
        std::io::Read::read_to_end(&mut decoder, &mut open).expect("gzip");
        assert_eq!(open, script.bytes);
        assert!(script.small.len() * 2 < script.bytes.len());
    }

    /// A page whose script or style is not among the files would be empty.
    #[test]
    fn the_page_names_only_files_that_there_are() {
        let page = std::str::from_utf8(ASSETS[0].bytes).expect("text");
        let mut named = 0;
        for part in page.split(['"', '\'']).filter(|part| part.starts_with('/')) {
            assert!(find(part).is_some_and(|asset| asset.path == part), "{part}");
            named += 1;
        }
        assert_eq!(named, 3);
        assert!(
            !page.contains("<style") && !page.contains("style="),
            "{page}"
        );
    }
}
