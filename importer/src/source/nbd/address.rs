//! Parses NBD addresses: a server and one of its exports. Pure.
//!
//! Source: the NBD URI specification,
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use url::Url;

use super::wire::STRING_MAX;
use crate::error::Error;

/// The port that is meant when none is given.
const PORT: u16 = 10809;

/// A server and its export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) server: Server,
    /// Empty for the server's default export.
    pub(super) export: String,
    /// Only over TLS.
    pub(super) tls: bool,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// Host (an IPv6 address without brackets) and port.
    Tcp(String, u16),
    /// A socket of this machine.
    Unix(PathBuf),
}

impl Address {
    /// `nbd://HOST[:PORT][/EXPORT]`, `nbds://…` for TLS, `nbd+unix:///[EXPORT]?socket=PATH`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|_| Error::usage("the source's address is not a URL"))?;
        let path = url.path();
        let export = String::from_utf8(decoded(path.strip_prefix('/').unwrap_or(path)))
            .ok()
            .filter(|name| name.len() <= STRING_MAX && !name.contains('\0'))
            .ok_or_else(|| Error::usage("the export's name is no UTF-8 text of at most 4096 bytes"))?;
        let host = url.host_str().unwrap_or_default();
        let server = match url.scheme() {
            "nbd" | "nbds" if !host.is_empty() => {
                parameters(&url, &[])?;
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                Server::Tcp(bare.to_owned(), url.port().unwrap_or(PORT))
            }
            "nbd" | "nbds" => {
                return Err(Error::usage("an address has the form nbd://HOST[:PORT]/EXPORT"));
            }
            "nbd+unix" if host.is_empty() => {
                let socket = parameters(&url, &["socket"])?
                    .into_iter()
                    .map(|(_, path)| path)
                    .find(|path| !path.is_empty())
                    .ok_or_else(|| {
                        Error::usage(
                            "an address has the form nbd+unix:///EXPORT?socket=PATH: there is no socket",
                        )
                    })?;
                Server::Unix(PathBuf::from(OsString::from_vec(decoded(socket))))
            }
            "nbd+unix" => {
                return Err(Error::usage(
                    "an address has the form nbd+unix:///EXPORT?socket=PATH, with three slashes",
                ));
            }
            other => return Err(Error::usage(format!("\"{other}://\" is no NBD address"))),
        };
        Ok(Self { server, export, tls: url.scheme() == "nbds" })
    }
}

/// The parameters behind the question mark, none but those of `known`, each once. What the rest would ask for, such as
/// a client certificate (`doc/uri.md`, "Query string"), is not done: an import without it may not be what is wanted.
fn parameters<'a>(url: &'a Url, known: &[&str]) -> Result<Vec<(&'a str, &'a str)>, Error> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for pair in url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // Values are not repeated: they may be secret.
        if !known.contains(&key) {
            let what = format!("the parameter \"{key}\" of an NBD address is not known here; leave it out");
            return Err(Error::usage(what));
        }
        if found.iter().any(|(before, _)| *before == key) {
            return Err(Error::usage(format!("an NBD address names \"{key}\" twice")));
        }
        found.push((key, value));
    }
    Ok(found)
}

/// For people: the address without what is in it besides server and export.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.server {
            Server::Tcp(host, port) if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}/{}", self.export)
            }
            Server::Tcp(host, port) => write!(f, "{scheme}://{host}:{port}/{}", self.export),
            Server::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
        }
    }
}

/// Percent signs undone (RFC 3986, 2.1); what is no escape stays as it is.
fn decoded(text: &str) -> Vec<u8> {
    let digit =
        |byte: Option<&u8>| byte.and_then(|&b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let pair = (digit(bytes.get(at + 1)), digit(bytes.get(at + 2)));
        if let (b'%', (Some(high), Some(low))) = (byte, pair) {
            out.push(high << 4 | low);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
        for (text, server, export, tls) in [
            ("nbd://h/e", tcp("h", 10809), "e", false),
            ("nbd://h", tcp("h", 10809), "", false),
            ("nbd://h:1/", tcp("h", 1), "", false),
            ("nbd://[::1]:2/a/b%20c", tcp("::1", 2), "a/b c", false),
            ("nbds://h/%zz%4", tcp("h", 10809), "%zz%4", true),
            ("nbd+unix:///?socket=/run/n%25s+1", Server::Unix("/run/n%s+1".into()), "", false),
            ("nbd+unix:///e?socket=s", Server::Unix("s".into()), "e", false),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address, Address { server, export: export.to_owned(), tls }, "{text}");
        }
        for text in [
            "nbd:///e",
            "nbd+unix:///e",
            "nbd+unix://h/e?socket=/s",
            "http://h/",
            "nbd+unix:///?socket=",
            "nbd://h/%ff",
            "nbd+unix:///e?x=1&socket=s",
            "nbd+unix:///e?socket=s&socket=t",
            "nbds://h/e?tls-certificates=/c",
            "nbd://h/e?socket=/s",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        assert!(Address::parse(&format!("nbd://h/{}", "x".repeat(5000))).is_err());
        assert_eq!(Address::parse("nbd://u:secret@[::1]/e").unwrap().to_string(), "nbd://[::1]:10809/e");
    }
}
