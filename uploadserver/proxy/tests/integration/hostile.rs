//! Hostile clients and crowds at the proxy while a good upload runs.

use crate::support::proxy::Proxy;
use crate::support::server::session::{TestListener, beside, crowded};

#[test]
fn upload_succeeds_while_hostile_clients_use_the_proxy() {
    let proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let connect = || proxy.connect().unwrap();
    let bearer = Some(proxy.bearer("disk"));
    beside(&TestListener { connect: Box::new(connect), identity: None, bearer }, &mut pod);
    assert_eq!(proxy.client().request("GET", "/healthz", &[], b"").status, 200, "{}", proxy.log());
}

#[test]
fn idle_connections_and_unfinished_heads_delay_no_upload_through_the_proxy() {
    let proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let connect = || proxy.connect().unwrap();
    let bearer = Some(proxy.bearer("disk"));
    let processes = [("proxy", proxy.process().id()), ("server", pod.process().id())];
    let door = TestListener { connect: Box::new(connect), identity: None, bearer };
    println!("{}", crowded(&door, &mut pod, &processes));
}
