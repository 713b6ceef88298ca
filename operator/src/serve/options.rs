//! Options in the body of a request to an aggregated API. Not here: what they mean, which each verb has.

use http::StatusCode;
use serde::de::DeserializeOwned;
use serve::route::Call;

use super::status::Refusal;

/// Largest body with options, in bytes.
pub(super) const MOST_BODY: usize = 64 << 10;

/// The options of a request; those by default without a body.
///
/// # Errors
/// 400 and 413: the body cannot be read, or is larger than [`MOST_BODY`].
pub(super) async fn read<T: DeserializeOwned + Default>(call: &mut Call) -> Result<T, Refusal> {
    let body = call.bytes(MOST_BODY).await?;
    if body.is_empty() { Ok(T::default()) } else { parse(&body) }
}

/// Options as JSON.
///
/// # Errors
/// 400: they are none.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let refused = |error| Refusal::new(StatusCode::BAD_REQUEST, format!("the request's options: {error}"));
    serde_json::from_slice(body).map_err(refused)
}
