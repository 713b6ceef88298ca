//! Images on registries: the digest of the manifest that a tag names (OCI distribution-spec 1.1, "Token Authentication
//! Specification" of distribution), without a user.

use api::poll::Request;
use http::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode};
use oci_client::Reference;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::fetch::{Fetcher, Problem, send, whole};

/// Accepted media types: images and indexes of them.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// The registry's digest of a manifest.
const DIGEST: &str = "docker-content-digest";
/// Longest manifest, and longest answer of a token server.
const MOST_MANIFEST: usize = 4 << 20;
const MOST_TOKEN: usize = 1 << 20;

/// The digest of an image's manifest.
pub(super) async fn version(client: &Fetcher, asked: &Request) -> Result<String, Problem> {
    let name = asked.url.trim_start_matches("docker://");
    let image: Reference = name
        .parse()
        .map_err(|_| Problem::Failed("the image's name is not docker://host/repository[:tag]".to_owned()))?;
    if let Some(digest) = image.digest() {
        return Ok(digest.to_owned());
    }
    let tag = image.tag().unwrap_or("latest");
    let path = format!("{}/v2/{}/manifests/{tag}", image.resolve_registry(), image.repository());
    let first = digest(client, &format!("https://{path}"), image.repository()).await;
    match first {
        // Without TLS only where the certificate would not matter either.
        Err(Problem::Failed(_)) if asked.insecure => {
            let plain = digest(client, &format!("http://{path}"), image.repository()).await;
            plain.or(first)
        }
        first => first,
    }
}

async fn digest(client: &Fetcher, url: &str, repository: &str) -> Result<String, Problem> {
    let request = |method: Method| Ok::<_, Problem>(client.request(method, url)?.header(ACCEPT, ACCEPTED));
    let mut answer = send(request(Method::HEAD)?).await?;
    let mut token = None;
    if answer.status() == StatusCode::UNAUTHORIZED {
        let given = self::token(client, answer.headers(), repository).await?;
        let authorization = format!("Bearer {given}");
        answer = send(request(Method::HEAD)?.header(AUTHORIZATION, &authorization)).await?;
        token = Some(authorization);
    }
    let told = answer.headers().get(DIGEST).and_then(|value| value.to_str().ok());
    if let Some(digest) = told.filter(|_| answer.status().is_success()) {
        return Ok(digest.to_owned());
    }
    let mut whole_request = request(Method::GET)?;
    if let Some(token) = token {
        whole_request = whole_request.header(AUTHORIZATION, token);
    }
    let answer = send(whole_request).await?;
    if !answer.status().is_success() {
        return Err(Problem::Failed(format!("the registry answers {}", answer.status())));
    }
    let manifest = whole(answer, MOST_MANIFEST).await?;
    let hash = Sha256::digest(&manifest);
    Ok(hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

/// A token for pulling, as the registry's challenge describes it.
async fn token(client: &Fetcher, headers: &HeaderMap, repository: &str) -> Result<String, Problem> {
    #[derive(Deserialize)]
    struct TokenAnswer {
        #[serde(alias = "access_token")]
        token: String,
    }
    let none = || {
        Problem::Failed("the registry requires credentials: name a Secret with them in secretRef".to_owned())
    };
    let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let parsed = challenges.filter_map(|text| http_auth::parse_challenges(text).ok());
    let parameters = |challenge: &http_auth::ChallengeRef<'_>| {
        let of = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        (of("realm").unwrap_or_default(), of("service"), of("scope"))
    };
    let (realm, service, scope) = parsed
        .flatten()
        .find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))
        .map(|challenge| parameters(&challenge))
        .ok_or_else(none)?;
    let mut query = vec![("scope", scope.unwrap_or_else(|| format!("repository:{repository}:pull")))];
    query.extend(service.map(|service| ("service", service)));
    let mut url = url::Url::parse(&realm).map_err(|_| {
        Problem::Failed(
            "the registry demands a login but names no token server (WWW-Authenticate)".to_owned(),
        )
    })?;
    url.query_pairs_mut().extend_pairs(query);
    let answer = send(client.request(Method::GET, url.as_str())?).await?;
    match answer.status() {
        status if status.is_success() => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(none()),
        status => {
            return Err(Problem::Failed(format!("the registry's token server answers {status}")));
        }
    }
    let body = whole(answer, MOST_TOKEN).await?;
    let given: TokenAnswer = serde_json::from_slice(&body)
        .map_err(|_| Problem::Failed("the registry's token server answered without a token".to_owned()))?;
    Ok(given.token)
}
