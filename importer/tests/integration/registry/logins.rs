//! Access to pull: passwords, files of credentials, tokens, strangers, and plain HTTP.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use importer::Kind;
use importer::source::registry::Options;
use importer::source::remote::Reach;
use serde_json::{Value, json};

use crate::registry::pull::{assert_pulled, assert_refused, open, options, read, with_user};
use crate::registry::servers::Cutter;
use crate::registry::tokens::TokenServer;
use sources::images::{GZIP, Layer, MIB, PASSWORD, USER, ZSTD, disk};
use sources::registry::{Login, Registry, Store, Tls};

#[test]
fn passwords_are_sent_when_asked_for() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    store.push("p", "latest", &[Layer::new(GZIP, &[("disk/a", b"behind a password")])]);
    let image = registry.image("p");
    assert_pulled(&with_user(image.clone(), &tls, PASSWORD), b"behind a password");
    assert_refused(
        &with_user(image.clone(), &tls, "wrong"),
        Kind::Connect,
        "does not accept the user and password",
    );
    assert_refused(&options(image.clone(), Some(&tls)), Kind::Connect, "give a user and password");
    let nobody = Options { reach: Reach::default(), ..with_user(image, &tls, PASSWORD) };
    assert_refused(&nobody, Kind::Connect, "is not trusted");
}

#[test]
fn credentials_come_from_files() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    store.push("team/p", "latest", &[Layer::new(GZIP, &[("disk/a", b"x")])]);
    let image = registry.image("team/p");
    let path = tls.folder.path().join(".dockerconfigjson");
    let write = |text: Value| fs::write(&path, text.to_string()).unwrap();
    let file = Options { auth_file: Some(path.clone()), ..options(image.clone(), Some(&tls)) };
    let good = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let bad = STANDARD.encode(format!("{USER}:hunter2"));
    let host = registry.address.to_string();
    write(json!({"auths": {host.clone(): {"auth": good}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {format!("https://{host}/v1/"): {"username": USER, "password": PASSWORD}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {host.clone(): {"auth": bad}, format!("{host}/team"): {"auth": good}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {"other.example": {"auth": good}}}));
    assert_refused(&file, Kind::Connect, "give a user and password");
    write(json!({"auths": {host: {"auth": bad}}}));
    assert_refused(&file, Kind::Connect, "does not accept");
    // A user given apart comes first.
    let both = Options { auth_file: Some(path.clone()), ..with_user(image, &tls, PASSWORD) };
    assert_pulled(&both, b"x");
    fs::write(&path, "hunter2").unwrap();
    assert_refused(&file, Kind::Usage, "not a file of registry credentials");
    fs::remove_file(&path).unwrap();
    assert_refused(&file, Kind::Usage, "cannot read");
}

#[test]
fn tokens_are_fetched_and_renewed() {
    let (store, tls) = (Store::start(), Arc::new(Tls::make()));
    let tokens = TokenServer::start(&tls, false);
    let registry = Registry::start(store.path(), Some(&tls), &tokens.login());
    let raw = disk(5 * MIB, 5);
    store.push("a/b", "latest", &[Layer::new(GZIP, &[("disk/a", &raw)])]);
    let image = registry.image("a/b");
    assert_pulled(&with_user(image.clone(), &tls, PASSWORD), &raw);
    let queries = tokens.queries();
    assert_eq!(queries.len(), 1, "{queries:?}");
    for part in ["service=the+registry", "scope=repository%3Aa%2Fb%3Apull", "account=robot"] {
        assert!(queries[0].contains(part), "{queries:?}");
    }
    // Tokens that are over when the blob is asked for, and again between its parts.
    let cutter = Cutter::start(registry.address, 600_000);
    tokens.lives.lock().unwrap().extend([2, 1, 1]);
    let opened = open(&with_user(format!("docker://{}/a/b", cutter.address), &tls, PASSWORD)).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(read(&opened).unwrap() == raw);
    assert!(tokens.queries().len() >= 2);

    assert_refused(&with_user(image.clone(), &tls, "wrong"), Kind::Connect, "/token answered 401");
    assert_refused(
        &with_user(image.clone(), &tls, "wrong"),
        Kind::Connect,
        "does not accept the user and password",
    );
    assert_refused(&options(image, Some(&tls)), Kind::Connect, "give a user and password");
    assert_refused(&with_user(registry.image("a/none"), &tls, PASSWORD), Kind::Connect, "404");
}

#[test]
fn strangers_get_tokens_where_that_is_allowed() {
    let (store, tls) = (Store::start(), Arc::new(Tls::make()));
    let tokens = TokenServer::start(&tls, true);
    let registry = Registry::start(store.path(), Some(&tls), &tokens.login());
    store.push("public", "latest", &[Layer::new(ZSTD, &[("disk/a", b"for all")])]);
    assert_pulled(&options(registry.image("public"), Some(&tls)), b"for all");
    assert!(!tokens.queries()[0].contains("account"));
}

#[test]
fn plain_http_only_where_it_was_allowed() {
    let (store, tls) = (Store::start(), Tls::make());
    store.push("h", "latest", &[Layer::new(GZIP, &[("disk/a", b"plain")])]);
    let secure = Registry::start(store.path(), Some(&tls), &Login::Open);
    // Insecure: with TLS, but without verification; without TLS.
    assert_pulled(&options(secure.image("h"), None), b"plain");
    assert_pulled(&options(store.writer.image("h"), None), b"plain");
    assert_refused(&options(store.writer.image("h"), Some(&tls)), Kind::Connect, "https://");
}
