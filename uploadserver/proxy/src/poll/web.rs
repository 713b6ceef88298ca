//! Files on web servers: their version by the server's headers.

use api::poll::{Request, mark};
use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LAST_MODIFIED, RANGE};

use super::fetch::{Fetcher, Problem, headers, send};

/// The version of a file. Servers that refuse HEAD are asked for its first byte.
pub(super) async fn version(client: &Fetcher, asked: &Request) -> Result<String, Problem> {
    let given = headers(&asked.headers)?;
    let mut answer = send(client.request(Method::HEAD, &asked.url)?.headers(given.clone())).await?;
    if !answer.status().is_success() {
        let request = client.request(Method::GET, &asked.url)?.headers(given).header(RANGE, "bytes=0-0");
        answer = send(request).await?;
    }
    if !answer.status().is_success() {
        return Err(Problem::Failed(format!("the server answers {}", answer.status())));
    }
    of_headers(answer.headers()).ok_or_else(|| {
        Problem::Failed(
            "the server sends neither ETag nor Last-Modified, so changes of the source cannot be detected"
                .to_owned(),
        )
    })
}

fn of_headers(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // "bytes 0-0/LENGTH"
    let length = match text(CONTENT_RANGE) {
        Some(range) => range.rsplit_once('/').map(|(_, length)| length),
        None => text(CONTENT_LENGTH),
    };
    mark(text(ETAG), text(LAST_MODIFIED), length.and_then(|length| length.parse().ok()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn head_and_first_byte_give_the_same_version() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs
                .iter()
                .map(|&(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
            of_headers(&pairs.collect())
        };
        let head = of(&[("last-modified", "then"), ("content-length", "70")]);
        let byte =
            of(&[("last-modified", "then"), ("content-length", "1"), ("content-range", "bytes 0-0/70")]);
        assert_eq!((head.as_deref(), &byte), (Some("modified then length 70"), &head));
        assert_eq!(of(&[("etag", "\"1\""), ("last-modified", "then")]).as_deref(), Some("etag \"1\""));
        assert_eq!(of(&[("content-length", "70")]), None);
    }
}
