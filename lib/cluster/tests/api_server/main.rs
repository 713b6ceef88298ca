//! The client against a real API server (`make kube`), some of it through a proxy that injects faults.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its figures"
)]

mod faulty;
mod memory;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::access::{Access, User};
use cluster::event::{Reference, Type};
use cluster::front::Front;
use cluster::lease::{Lease, Times};
use cluster::{
    Apply, Cache, Client, Config, Delete, Events, JsonPatch, Key, Kind, Propagation, Resource, Scope, stop,
};
use faulty::{Fault, Faulty};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use server::Server;

const MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
const EVENTS: Resource = Resource::namespaced("", "v1", "events");
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default",
        "labels": {"test": name.split('-').next()}}, "data": {"v": value}})
}

#[derive(Deserialize)]
struct Map {
    #[serde(default)]
    data: std::collections::BTreeMap<String, String>,
}

/// Projection of a ConfigMap.
#[derive(Debug, PartialEq)]
struct Projection(String);

impl From<&Map> for Projection {
    fn from(map: &Map) -> Self {
        Self(map.data.get("v").cloned().unwrap_or_default())
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(90), "not within 90 s: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_works_against_a_real_api_server() {
    let mut server = Server::start().await;
    let client = server.client();
    // The API server makes it some time after it is ready.
    let namespace = async || client.read::<Value>("/api/v1/namespaces/default").await.is_ok();
    eventually("the namespace default exists", namespace).await;
    calls(&client).await;
    events(&client).await;
    access(&client, &server.config()).await;
    leases(&client).await;
    faults(&client, &mut server).await;
}

async fn calls(client: &Client) {
    let key = Key::new("default", "calls");
    let created: Value = client.create(MAPS, "default", &map("calls", "1")).await.unwrap();
    let again = client.create::<Value>(MAPS, "default", &map("calls", "1")).await.unwrap_err();
    assert_eq!(again.kind(), Kind::AlreadyExists);
    assert!(client.find::<Value>(MAPS, &Key::new("default", "nothing")).await.unwrap().is_none());
    assert!(client.find_cached::<Value>(MAPS, &key).await.unwrap().is_some());
    let missing = client.get::<Value>(MAPS, &Key::new("nowhere", "calls")).await.unwrap_err();
    assert_eq!((missing.kind(), missing.code()), (Kind::NotFound, Some(404)));
    let invalid = client.create::<Value>(MAPS, "default", &map("Not_A_Name", "1")).await.unwrap_err();
    assert_eq!(invalid.kind(), Kind::Invalid, "{invalid}");

    let mut changed = created.clone();
    changed["data"]["v"] = json!("2");
    client.replace::<Value>(MAPS, &key, &changed).await.unwrap();
    let stale = client.replace::<Value>(MAPS, &key, &changed).await.unwrap_err();
    assert!(stale.is_conflict(), "{stale}");

    let patch = JsonPatch::new().test("/data/v", "2").replace("/data/v", "3");
    let patched: Value = client.json_patch(MAPS, &key, &patch).await.unwrap();
    assert_eq!(patched["data"]["v"], "3");
    let failed = client.json_patch::<Value>(MAPS, &key, &patch).await.unwrap_err();
    assert!(failed.is_conflict(), "a failed test is a conflict: {failed:?}");
    let refused = JsonPatch::new().test("/data/v", "3").add("/metadata/labels/a b", "c");
    let refused = client.json_patch::<Value>(MAPS, &key, &refused).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "an invalid object is not a conflict: {refused:?}");
    let merged: Value =
        client.merge_patch(MAPS, &key, &json!({"data": {"v": null, "w": "4"}})).await.unwrap();
    assert_eq!(merged["data"], json!({"w": "4"}));

    let one = Apply { manager: "one", force: false };
    client.apply::<Value>(MAPS, &key, &map("calls", "5"), one).await.unwrap();
    let two = Apply { manager: "two", force: false };
    let owned = client.apply::<Value>(MAPS, &key, &map("calls", "6"), two).await.unwrap_err();
    assert!(owned.is_conflict(), "{owned}");
    client.apply::<Value>(MAPS, &key, &map("calls", "6"), Apply { force: true, ..two }).await.unwrap();

    for n in 0..3 {
        client.create::<IgnoredAny>(MAPS, "default", &map(&format!("many-{n}"), "x")).await.unwrap();
    }
    let many: Vec<Value> = client.list(MAPS, &Scope::all().labels("test=many")).await.unwrap();
    assert_eq!(many.len(), 3);
    let named: Vec<Value> =
        client.list(MAPS, &Scope::all().namespace("default").name("many-1")).await.unwrap();
    assert_eq!(named.len(), 1);

    let other = client.delete(MAPS, &key, &Delete::default().uid("another")).await.unwrap_err();
    assert!(other.is_conflict(), "{other}");
    let options = Delete::default().grace(0).propagation(Propagation::Background);
    assert!(client.delete(MAPS, &key, &options).await.unwrap());
    assert!(!client.delete(MAPS, &key, &options).await.unwrap());
}

async fn events(client: &Client) {
    let about: Value = client.get(NAMESPACES, &Key::cluster("default")).await.unwrap();
    let about = Reference {
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        namespace: String::new(),
        name: "default".to_owned(),
        uid: about["metadata"]["uid"].as_str().unwrap().to_owned(),
    };
    let events = Events::start(client, "tests", "pod-1");
    for _ in 0..3 {
        events.publish(&about, Type::Normal, "Same", "the same each time");
    }
    for n in 0..14 {
        events.publish(&about, Type::Warning, "Other", &format!("another message {n}"));
    }
    let scope = Scope::all().namespace("default").fields("involvedObject.kind=Namespace");
    eventually("equal events are counted, similar ones combined", async || {
        let written: Vec<Value> = client.list(EVENTS, &scope).await.unwrap();
        let of =
            |reason: &str| written.iter().filter(|one| one["reason"] == reason).cloned().collect::<Vec<_>>();
        let (same, other) = (of("Same"), of("Other"));
        let combined = other.iter().find(|one| one["message"].as_str().unwrap().starts_with("(combined"));
        same.len() == 1
            && same[0]["count"] == 3
            && other.len() == 11
            && combined.is_some_and(|one| one["count"] == 4)
    })
    .await;
    let shown: Value = client.read("/apis/events.k8s.io/v1/namespaces/default/events").await.unwrap();
    assert!(shown["items"].as_array().unwrap().iter().any(|one| one["reason"] == "Same"));
    assert_eq!(events.dropped(), 0);
}

async fn access(client: &Client, config: &Config) {
    let user = User {
        username: "eve".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        ..User::default()
    };
    let access =
        Access { namespace: "default", verb: "get", version: "v1", resource: "secrets", ..Access::default() };
    assert!(!client.may(&user, &access).await.unwrap().allowed);
    let admin = User { groups: vec!["system:masters".to_owned()], ..user.clone() };
    assert!(client.may(&admin, &access).await.unwrap().allowed);
    assert!(!client.may_path(&user, "get", "/metrics").await.unwrap().allowed);
    assert!(client.user_of("nonsense").await.unwrap().is_none());
    let path = "/api/v1/namespaces/default/serviceaccounts";
    client.post::<Value>(path, &json!({"metadata": {"name": "reader"}})).await.unwrap();
    let accounts = Resource::namespaced("", "v1", "serviceaccounts").sub("token");
    let key = Key::new("default", "reader");
    let token: Value = client.create_sub(accounts, &key, &json!({"spec": {}})).await.unwrap();
    let token = token["status"]["token"].as_str().unwrap();
    let user = client.user_of(token).await.unwrap().unwrap();
    assert_eq!(user.username, "system:serviceaccount:default:reader");
    let credentials = cluster::credentials::Credentials::token(token).unwrap();
    let reader = Client::new(&Config { identity: None, credentials, ..config.clone() }, "tests").unwrap();
    let refused = reader.get::<Value>(MAPS, &key).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Forbidden);
    let stranger = Client::new(&Config { identity: None, ..config.clone() }, "tests").unwrap();
    let refused = stranger.get::<Value>(MAPS, &key).await.unwrap_err();
    assert!(matches!(refused.kind(), Kind::Forbidden | Kind::Unauthorized), "{refused:?}");
    eventually("the front proxy's authority is published", async || Front::read(client).await.is_ok()).await;
}

async fn leases(client: &Client) {
    let times = Times {
        lives: Duration::from_secs(3),
        renew_within: Duration::from_secs(2),
        period: Duration::from_millis(200),
    };
    let led = Arc::new(std::sync::Mutex::new(Vec::new()));
    let replica = |name: &'static str| {
        let (stopper, stop) = stop::pair();
        let lease = Lease::new(client, "default", "tests", name).times(times);
        let led = Arc::clone(&led);
        let task = tokio::spawn(async move {
            let work = |stop: cluster::Stop| {
                let led = Arc::clone(&led);
                async move {
                    led.lock().unwrap().push(name);
                    stop.wait().await;
                    led.lock().unwrap().push("end");
                }
            };
            lease.hold(&stop, work).await;
        });
        (stopper, task)
    };
    let now = || led.lock().unwrap().clone();
    let (one, one_task) = replica("one");
    eventually("the first leads", async || now() == ["one"]).await;
    let (two, two_task) = replica("two");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(now(), ["one"], "a held lease is not taken");
    let begun = Instant::now();
    one.stop();
    one_task.await.unwrap();
    eventually("the second leads", async || now() == ["one", "end", "two"]).await;
    println!("lease handed over {:?} after a graceful end", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "a released lease is taken before it expires");
    // A replica that is killed does not release.
    two_task.abort();
    drop(two);
    let begun = Instant::now();
    let (three, three_task) = replica("three");
    eventually("the third leads", async || now().last() == Some(&"three")).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "an unreleased lease has to expire");
    three.stop();
    three_task.await.unwrap();
}

/// A cache behind a faulty proxy converges to what the API server has, after every fault and a restart.
async fn faults(client: &Client, server: &mut Server) {
    let proxy = Faulty::start(&server.config()).await;
    let through = Client::new(&Config::new(proxy.address.as_str()), "tests").unwrap();

    // 1 200 objects are three pages.
    let scope = Scope::all().labels("test=faulty");
    for chunk in 0..12 {
        let made = (0..100).map(|n| {
            let object = map(&format!("faulty-{}", chunk * 100 + n), "x");
            async move { client.create::<IgnoredAny>(MAPS, "default", &object).await.map(drop) }
        });
        for made in futures_util::future::join_all(made).await {
            made.unwrap();
        }
    }
    client.create::<IgnoredAny>(MAPS, "default", &map("foreign-1", "x")).await.unwrap();
    let expired = r#"{"kind":"Status","message":"too old","reason":"Expired","code":410}"#;
    let gone = concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","message":"too old","reason":"Expired","code":410}}"#,
        "\n"
    );
    proxy.plan("limit=500", Fault::Answer(429, Some(1), ""));
    proxy.plan("limit=500", Fault::Answer(503, None, "overloaded"));
    proxy.plan("continue=e", Fault::Answer(410, None, expired));
    proxy.plan("limit=500", Fault::Break(Duration::ZERO));
    proxy.plan("watch=true", Fault::Answer(410, None, expired));
    proxy.plan("watch=true", Fault::Answer(200, None, gone));
    proxy.plan("watch=true", Fault::End(Duration::ZERO));
    proxy.plan("watch=true", Fault::Break(Duration::from_millis(200)));
    let begun = Instant::now();
    let cache = Cache::<Projection>::builder().start::<Map>(&through, MAPS, &scope);
    cache.synced().await;
    assert_eq!(cache.len(), 1200);
    println!("1200 objects listed through 4 faults in {:?}", begun.elapsed());
    let mut value = 0;
    eventually("every fault is met", async || {
        value += 1;
        let patch = json!({"data": {"v": value.to_string()}});
        client.merge_patch::<IgnoredAny>(MAPS, &Key::new("default", "faulty-7"), &patch).await.unwrap();
        proxy.left() == 0
    })
    .await;
    let key = Key::new("default", "faulty-7");
    eventually("the last change arrives", async || cache.get(&key).unwrap().0 == value.to_string()).await;
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let calls = proxy.asked.lock().unwrap().len();
    println!(
        "{calls} calls in {minutes:.2} minutes with 8 faults: {:.0} per minute",
        f64::from(u32::try_from(calls).unwrap()) / minutes
    );
    assert!(calls < 80, "{calls} calls are a busy loop");

    let before = through.counts();
    server.kill();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!cache.is_current());
    let calls = through.counts().requests - before.requests;
    println!("{calls} calls in {:?} without an API server", begun.elapsed());
    assert!(calls <= 20, "{calls} calls are a busy loop");
    server.resume().await;
    client.delete(MAPS, &Key::new("default", "faulty-8"), &Delete::default()).await.unwrap();
    client.merge_patch::<IgnoredAny>(MAPS, &key, &json!({"data": {"v": "end"}})).await.unwrap();
    eventually("the cache converges after the restart", async || {
        cache.len() == 1199 && cache.get(&key).is_some_and(|seen| seen.0 == "end")
    })
    .await;
    println!("converged {:?} after the API server was killed", begun.elapsed());
    assert!(!proxy.received(r#""name":"faulty-7""#).is_empty());
    assert_eq!(proxy.received(r#""name":"foreign-1""#), [""; 0], "an object outside of the cache's scope");
    drop(cache);
    expired_version_is_met_at_once(&proxy, &through, expired).await;
}

/// A server that was away and is back refuses the version of a watch: the collection is listed soon, although the
/// pauses have grown to seconds.
async fn expired_version_is_met_at_once(proxy: &Faulty, through: &Client, expired: &'static str) {
    for _ in 0..4 {
        proxy.plan("watch=true", Fault::Answer(500, None, "failed"));
    }
    proxy.plan("watch=true", Fault::Answer(410, None, expired));
    let cache =
        Cache::<Projection>::builder().start::<Map>(through, MAPS, &Scope::all().labels("test=foreign"));
    eventually("every fault is met", async || proxy.left() == 0).await;
    let (begun, asked) = (Instant::now(), proxy.asked.lock().unwrap().len());
    eventually("the collection is listed", async || proxy.asked.lock().unwrap().len() > asked).await;
    println!("listed {:?} after the version had expired", begun.elapsed());
    // The fifth pause takes three to four seconds, the first one a quarter of one.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    eventually("the cache is current", async || cache.is_current()).await;
}
